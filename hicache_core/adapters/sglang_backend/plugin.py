"""Entry point of the backend `sglang`."""

from __future__ import annotations

from hicache_core.adapters.sglang_backend.options import SglangOptions, capabilities_under
from hicache_core.plugin.spec import hookimpl
from hicache_core.types import BackendSpec, SdkRequirement

SPEC = BackendSpec(
    name="sglang",
    description="any storage class of SGLang (HiCacheStorage), by module and class name, as it is",
    options=SglangOptions,
    factory="hicache_core.adapters.sglang_backend.backend:open_sglang",
    capabilities=capabilities_under,
    requires=(
        SdkRequirement("torch", "pip install torch"),
        SdkRequirement("sglang", "pip install sglang, or tools/peers/sglang.sh for one that needs no GPU"),
    ),
)


@hookimpl
def hicache_backend() -> BackendSpec:
    """Describe it."""
    return SPEC
