"""The entry point of backend `file`."""

from __future__ import annotations

from hicache_core.plugin.spec import hookimpl
from hicache_core.types import BackendSpec
from hicache_file.options import FileOptions, capabilities


@hookimpl
def hicache_backend() -> BackendSpec:
    """The description of backend `file`."""
    return BackendSpec(
        name="file",
        description="one page per file in a local or shared directory, with a cap and LRU eviction",
        options=FileOptions,
        factory="hicache_file.backend:open_file",
        capabilities=capabilities,
        probe="hicache_file.probe:probe",
        options_from_url="hicache_file.options:options_from_url",
    )
