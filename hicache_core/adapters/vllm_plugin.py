"""The entry point of group `vllm.general_plugins`: makes `"type": "hicache"` a name that vLLM knows.

vLLM loads its plugins in every process, perhaps more than once, and does not catch what they raise.
"""

from __future__ import annotations

import logging

TIER_TYPE = "hicache"
MODULE, CLASS = "hicache_core.adapters.vllm", "HiCacheTier"

_log = logging.getLogger(__name__)


def register() -> None:
    """Register the tier type. The tier's own module is imported only by an engine that is configured to use it."""
    try:
        from vllm.v1.kv_offload.tiering.factory import (
            SecondaryTierFactory,
        )
    except ImportError as error:
        _log.debug("this vLLM has no secondary tiers (they came with 0.24): %s", error)
        return
    try:
        SecondaryTierFactory.register_tier(TIER_TYPE, MODULE, CLASS)
    except ValueError:
        _log.debug("the tier type %r is registered already", TIER_TYPE)
