"""The entry point of backend `aibrix`."""

from __future__ import annotations

from hicache_aibrix.options import INSTALL, AibrixOptions, capabilities
from hicache_core.plugin.spec import hookimpl
from hicache_core.types import BackendSpec, SdkRequirement


@hookimpl
def hicache_backend() -> BackendSpec:
    """The description of backend `aibrix`."""
    return BackendSpec(
        name="aibrix",
        description="AIBrix KVCache by its connectors: SHFS (a shared directory) or ROCKSDB (embedded)",
        options=AibrixOptions,
        factory="hicache_aibrix.opening:open_aibrix",
        capabilities=capabilities,
        requires=(SdkRequirement("aibrix_kvcache", INSTALL),),
        probe="hicache_aibrix.probe:probe",
    )
