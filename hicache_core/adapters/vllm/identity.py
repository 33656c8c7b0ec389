"""What the bytes of a primary row depend on, as vLLM tells it.

The scheduler's view holds one row per chunk, and a row holds what *all* workers of the engine keep of it, worker
after worker, padded to the system's page: |W0|W1|…|Wn|padding|. There is one tier per engine, in the scheduler, so
no rank stands in the identity. The topology does, unless vLLM says that the bytes do not depend on it
(`is_parallelism_agnostic`: worker after worker gives the same bytes under any; `replicated_layout`: one copy).

The rows are opaque: geometry, order and the release that wrote them go into the name of the layout, by a digest.
Every KV cache group has a pool of its own, since the same block hash means other layers there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from hicache_core.adapters.door_options import DoorOptions
from hicache_core.namespace import Identity

LAYOUT_VERSION = 1
_GROUP_BYTES = 4
_HASH_BYTES = 32


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What a row depends on beside weights. model: the engine's name for it. groups: tokens per block and
    layer names, in the order of group_idx."""

    model: str
    dtype: str
    row_bytes: int
    groups: tuple[tuple[int, tuple[str, ...]], ...]
    tokens_per_hash: int
    blocks_per_chunk: int
    topology: tuple[tuple[str, int], ...]
    """Parallel sizes by name; empty where the bytes do not depend on them."""
    form: str
    """How rows are made: direct, canonical or replicated."""
    worker_layout: str
    release: str
    """vLLM's major and minor version: it promises nothing about the order of bytes between releases."""

    def layout(self) -> str:
        """A name for the byte order: what a person can read, then 32 hex digits over all of it."""
        told = msgspec.json.encode((LAYOUT_VERSION, msgspec.structs.replace(self, model="")))
        sizes = "".join(f"{name}{size}" for name, size in self.topology if size > 1)
        return f"vllm-{self.form}-{sizes or 'any'}-{hashlib.sha256(told).hexdigest()[:32]}"


def facts_of(spec: Any, row_bytes: int, release: str) -> Facts:
    """From vLLM's offloading spec (0.25 and later carry a normalized config, 0.24 the engine's own)."""
    config = getattr(spec, "config", None)
    short = ".".join(release.split(".")[:2])
    if config is None:
        return _facts_of_0_24(spec, row_bytes, short)
    parallel = config.parallel
    replicated = bool(spec.replicated_layout or config.replicated_layout)
    sizes = {name: int(getattr(parallel, f"{name}_size")) for name in ("tp", "pp", "pcp", "dcp")}
    canonical = bool(getattr(config, "canonical_layout", False))
    portable = parallel.is_parallelism_agnostic or replicated
    return Facts(
        model=config.model.name,
        dtype=str(config.model.dtype),
        row_bytes=row_bytes,
        groups=tuple((group.tokens_per_block, tuple(group.layer_names)) for group in config.groups),
        tokens_per_hash=config.cache.tokens_per_hash,
        blocks_per_chunk=config.cache.blocks_per_chunk,
        topology=() if portable else tuple(sizes.items()),
        form="replicated" if replicated else "canonical" if canonical else "direct",
        worker_layout=str(getattr(config, "kv_cache_layout", None)),
        release=short,
    )


def _facts_of_0_24(spec: Any, row_bytes: int, short: str) -> Facts:
    engine, cache = spec.vllm_config, spec.kv_cache_config
    parallel = engine.parallel_config
    sizes = {
        "tp": parallel.tensor_parallel_size,
        "pp": parallel.pipeline_parallel_size,
        "pcp": parallel.prefill_context_parallel_size,
        "dcp": parallel.decode_context_parallel_size,
    }
    names = [tuple(group.layer_names) for group in cache.kv_cache_groups]
    return Facts(
        model=engine.model_config.model,
        dtype=str(engine.cache_config.cache_dtype).removeprefix("torch."),
        row_bytes=row_bytes,
        groups=tuple(zip(spec.gpu_block_size, names, strict=True)),
        tokens_per_hash=spec.hash_block_size,
        blocks_per_chunk=spec.block_size_factor,
        topology=tuple(sizes.items()),
        form="direct",
        worker_layout=str(None),
        release=short,
    )


def identity_of(facts: Facts, options: DoorOptions, where: str) -> Identity:
    """Raises IdentityError where nothing says which weights these are."""
    model = options.model or facts.model
    layers = sum(len(names) for _, names in facts.groups)
    tokens = facts.groups[0][0] * facts.blocks_per_chunk if facts.groups else 1
    return Identity(
        model=model,
        weights=options.weights_of(facts.model, where),
        dtype=facts.dtype,
        page_size=tokens & -tokens,  # an identity wants a power of two; the true number is in the layout
        kind="mha",
        layer_num=max(1, layers),
        head_num=1,
        head_dim=facts.row_bytes,
        layout=facts.layout(),
        tenant=options.tenant,
    )


def page_hashes(keys: Iterable[bytes]) -> list[str]:
    """The block hashes inside offload keys, 64 hex digits each.

    A hash that is not 32 bytes long (of vLLM's xxhash algorithms) goes in by its SHA-256.
    """
    return [_page_hash(key[:-_GROUP_BYTES]) for key in keys]


def _page_hash(block_hash: bytes) -> str:
    if len(block_hash) == _HASH_BYTES:
        return block_hash.hex()
    return hashlib.sha256(b"vllm block " + block_hash).hexdigest()


def by_pool(keys: Sequence[bytes]) -> list[tuple[str, list[int]]]:
    """Which keys (by index) belong to which pool: `kv` for KV cache group 0, `kv_group1` and so on for others."""
    tails = [key[-_GROUP_BYTES:] for key in keys]
    groups: dict[bytes, list[int]] = {}
    if len(set(tails)) == 1:
        groups[tails[0]] = list(range(len(keys)))
    else:
        for index, tail in enumerate(tails):
            groups.setdefault(tail, []).append(index)
    return [(_pool(tail), indices) for tail, indices in groups.items()]


def _pool(tail: bytes) -> str:
    number = int.from_bytes(tail, "big")
    return f"kv_group{number}" if number else "kv"
