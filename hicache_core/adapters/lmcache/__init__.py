"""The doors into LMCache. Imports LMCache.

Its server and the engines that embed it in their scheduler take an L2 adapter:
--l2-adapter '{"type": "plugin", "module_path": "hicache_core.adapters.lmcache", "class_name": "HiCacheL2Adapter",
  "adapter_params": {"backend": "file", "options": {"root": "/var/cache/kv"}, "model_path": "/models/llama"}}'

The generation that runs inside an engine's workers takes a remote connector, `HiCacheConnectorAdapter`.
"""

from __future__ import annotations

from typing import Any

from hicache_core.adapters.lmcache.config import HiCacheL2AdapterConfig
from hicache_core.adapters.lmcache.l2_adapter import HiCacheL2Adapter

__all__ = ["HiCacheConnector", "HiCacheConnectorAdapter", "HiCacheL2Adapter", "HiCacheL2AdapterConfig"]

_OF_THE_CONNECTOR = ("HiCacheConnector", "HiCacheConnectorAdapter")


def __getattr__(name: str) -> Any:
    """The connector's classes, when somebody asks: they need parts of LMCache that its server does not."""
    if name in _OF_THE_CONNECTOR:
        from hicache_core.adapters.lmcache import connector

        return getattr(connector, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
