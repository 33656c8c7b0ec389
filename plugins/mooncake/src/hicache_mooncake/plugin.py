"""The entry point of backend `mooncake`."""

from __future__ import annotations

from hicache_core.plugin.spec import hookimpl
from hicache_core.types import BackendSpec, SdkRequirement
from hicache_mooncake.options import INSTALL, MooncakeOptions, capabilities


@hookimpl
def hicache_backend() -> BackendSpec:
    """The description of backend `mooncake`."""
    return BackendSpec(
        name="mooncake",
        description="one object per page in Mooncake's distributed memory store, zero-copy from registered pools",
        options=MooncakeOptions,
        factory="hicache_mooncake.opening:open_mooncake",
        capabilities=capabilities,
        requires=(SdkRequirement("mooncake", INSTALL),),
        probe="hicache_mooncake.probe:probe",
        options_from_url="hicache_mooncake.options:options_from_url",
    )
