"""The entry point of backend `eic`."""

from __future__ import annotations

from hicache_core.plugin.spec import hookimpl
from hicache_core.types import BackendSpec, SdkRequirement
from hicache_eic.options import EicOptions, capabilities


@hookimpl
def hicache_backend() -> BackendSpec:
    """The description of backend `eic`."""
    return BackendSpec(
        name="eic",
        description="EIC by its vendor's client; checked against the API, not yet against a server",
        options=EicOptions,
        factory="hicache_eic.backend:open_eic",
        capabilities=capabilities,
        requires=(
            SdkRequirement(
                "eic", "install the client (module eic) that your EIC provider hands out; no index has it"
            ),
        ),
    )
