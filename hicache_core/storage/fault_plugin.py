"""Entry point of the backend `fault`."""

from __future__ import annotations

from hicache_core.plugin.spec import hookimpl
from hicache_core.storage.fault_options import FaultOptions, capabilities_under
from hicache_core.types import BackendSpec


@hookimpl
def hicache_backend() -> BackendSpec:
    """Describe it."""
    return BackendSpec(
        name="fault",
        description="seeded faults around any backend: a store that fails, stalls and lies, as often as you say",
        options=FaultOptions,
        factory="hicache_core.storage.fault:open_fault",
        capabilities=capabilities_under,
    )
