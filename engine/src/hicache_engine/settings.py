"""Everything that decides what an engine is, as one value that can be written down and handed to another process.

torch is imported when a model is loaded: `--help` and a wrong option need not wait for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from hicache_core.config.model import HiCacheConfig

if TYPE_CHECKING:
    from .engine import Engine
    from .loading import LoadedModel

PAGE_SIZE = 16
"""Tokens per page unless told otherwise: small, so that a short prompt has many."""


class EngineOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """An engine's options. `cache` holds the hierarchy's own."""

    model: Annotated[str, Meta(description="smollm2, random, or the path of a Llama GGUF")] = "smollm2"
    dtype: Annotated[str, Meta(description="float32, bfloat16 or float16, of weights and KV")] = "float32"
    device: Annotated[str, Meta(description="a torch device: cpu, cuda, cuda:1, …")] = "cpu"
    seed: Annotated[int, Meta(description="of a random model's weights", ge=-(2**63), le=2**63 - 1)] = 0
    device_tokens: Annotated[int, Meta(description="tokens that the device pool (L1) holds", ge=1)] = 8192
    chunk: Annotated[int, Meta(description="tokens of one prefill pass")] = 256
    max_running: Annotated[int, Meta(description="sequences at once")] = 8
    tenant: Annotated[str, Meta(description="keeps stored pages apart from other tenants'")] = ""
    threads: Annotated[
        Annotated[int, Meta(ge=1, le=1024)] | None,
        Meta(description="torch's threads; none: torch's own choice, one for random"),
    ] = None
    cache: HiCacheConfig = msgspec.field(
        default_factory=lambda: HiCacheConfig(enable_hierarchical_cache=True, page_size=PAGE_SIZE)
    )

    def load(self) -> LoadedModel:
        """The model alone. Raises ModelFileError and ConfigError as `load_model` does."""
        from .engine import use_threads
        from .loading import load_model

        use_threads(
            self.threads or (1 if self.model == "random" else None)
        )  # its matrices are not worth a second one
        return load_model(self.model, dtype=self.dtype, device=self.device, seed=self.seed)

    def build(self, model: LoadedModel | None = None) -> Engine:
        """The engine, on `model` where it has been loaded before. Raises what `Engine` raises."""
        from .engine import Engine
        from .scheduler import SchedulerSettings

        return Engine(
            model or self.load(),
            self.cache,
            device_pages=-(-self.device_tokens // self.cache.page_size),
            settings=SchedulerSettings(self.chunk, self.max_running),
            tenant=self.tenant,
        )
