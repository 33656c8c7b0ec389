"""The keys of a tier `hicache` in vLLM's `secondary_tiers`, beside those that every door has."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from hicache_core.adapters.door_options import LendingDoorOptions


class TierOptions(LendingDoorOptions, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Options of the tier. `type`, `module_path` and `backpressure` are vLLM's and do not come here."""

    locality: Annotated[
        Literal["LOCAL", "REMOTE"] | None, Meta(description="where the store is, for vLLM's KV events and filters")
    ] = None
    enable_kv_events: Annotated[bool, Meta(description="tell vLLM's KV event stream of each block stored here")] = (
        False
    )
