"""The keys of a tier `hicache` in vLLM's `secondary_tiers`, beside those that every door has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta

from hicache_core.adapters.door_options import DoorOptions
from hicache_core.plugin.options import parse_options


class TierOptions(DoorOptions, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Options of the tier. `type`, `module_path` and `backpressure` are vLLM's and do not come here."""

    hold: Annotated[
        float, Meta(description="seconds after its deadline that a store which hangs keeps its rows reserved", ge=0)
    ] = 30.0
    locality: Annotated[
        Literal["LOCAL", "REMOTE"] | None, Meta(description="where the store is, for vLLM's KV events and filters")
    ] = None
    enable_kv_events: Annotated[bool, Meta(description="tell vLLM's KV event stream of each block stored here")] = (
        False
    )


def parse_tier_options(config: Mapping[str, Any], where: str) -> TierOptions:
    """Raises OptionError that names the key and the nearest good one, ConfigError where no store is named."""
    options = parse_options(TierOptions, config, where=where)
    options.choice(where)
    return options
