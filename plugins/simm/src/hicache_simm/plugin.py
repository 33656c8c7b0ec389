"""The entry point of backend `simm`."""

from __future__ import annotations

from hicache_core.plugin.spec import hookimpl
from hicache_core.types import BackendSpec, SdkRequirement
from hicache_simm.options import SimmOptions, capabilities

INSTALL = "build the SiMM client from https://github.com/scitix/SiMM (PyPI's `simm` is another, unrelated package)"


@hookimpl
def hicache_backend() -> BackendSpec:
    """The description of backend `simm`."""
    return BackendSpec(
        name="simm",
        description="SiMM by its client; checked against the API, not yet against a server",
        options=SimmOptions,
        factory="hicache_simm.backend:open_simm",
        capabilities=capabilities,
        requires=(SdkRequirement("simm.kv", INSTALL), SdkRequirement("torch", "pip install torch")),
    )
