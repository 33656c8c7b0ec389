"""Entry point of the backend `memory`."""

from __future__ import annotations

from hicache_core.plugin.spec import hookimpl
from hicache_core.storage.memory import CAPABILITIES, MemoryOptions
from hicache_core.types import BackendSpec


@hookimpl
def hicache_backend() -> BackendSpec:
    """Describe it."""
    return BackendSpec(
        name="memory",
        description="pages in the memory of this process, for tests and trials",
        options=MemoryOptions,
        factory="hicache_core.storage.memory:open_memory",
        capabilities=CAPABILITIES,
    )
