"""The entry point of backend `nixl`."""

from __future__ import annotations

from hicache_core.plugin.spec import hookimpl
from hicache_core.types import BackendSpec, SdkRequirement
from hicache_nixl.options import NixlOptions, capabilities

INSTALL = "pip install --no-deps nixl-cu12==1.5.1 nixl==1.5.1 (the cu12 wheel needs no CUDA for POSIX and OBJ)"


@hookimpl
def hicache_backend() -> BackendSpec:
    """The description of backend `nixl`."""
    return BackendSpec(
        name="nixl",
        description="pages as files (POSIX: AIO, io_uring, O_DIRECT) or S3 objects (OBJ), moved by NIXL",
        options=NixlOptions,
        factory="hicache_nixl.backend:open_nixl",
        capabilities=capabilities,
        requires=(SdkRequirement("nixl", INSTALL), SdkRequirement("torch", "pip install torch (nixl imports it)")),
        probe="hicache_nixl.probe:probe",
    )
