"""The configuration class that LMCache looks for beside the adapter's."""

from __future__ import annotations

from typing import Any

import msgspec
from lmcache.v1.distributed.l2_adapters.config import L2AdapterConfigBase

from hicache_core.adapters.door_options import parse_door_options
from hicache_core.adapters.lmcache.options import L2Options
from hicache_core.plugin.options import describe_options

WHERE = "adapter_params of HiCacheL2Adapter"


class HiCacheL2AdapterConfig(L2AdapterConfigBase):  # type: ignore[misc]
    """`adapter_params`, parsed. LMCache finds this class by its name and calls `from_dict`."""

    def __init__(self, options: L2Options) -> None:
        self.options = options

    @classmethod
    def from_dict(cls, d: dict[str, Any]) -> HiCacheL2AdapterConfig:
        """Raises OptionError and ConfigError, which say what to write instead."""
        return cls(parse_door_options(L2Options, d, WHERE))

    @classmethod
    def help(cls) -> str:
        """One line for each option."""
        lines = [f"- {info.name} ({info.type}): {info.help}" for info in describe_options(L2Options)]
        return "\n".join(["HiCacheL2Adapter fields:", *lines])

    def __repr__(self) -> str:
        names = msgspec.structs.asdict(self.options)
        return f"<HiCacheL2AdapterConfig {self.options.backend or 'url'} {len(names)} options>"
