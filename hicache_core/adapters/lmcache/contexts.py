"""From LMCache's object keys to pages.

An L2 adapter serves whatever models its server's engines bring: model, rank, object group and salt stand in every
key, and the shapes and dtypes of an object beside it. All of it but the chunk's hash is a `Context`. A context is a
pool of the session by the name `c_` and 128 bits of SHA-256, and a chunk's hash is the page's; so two keys share a
page only if LMCache itself calls them equal *and* their bytes have equal shapes and dtypes, of equal weights.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from hicache_core.adapters.lmcache.options import Models
from hicache_core.namespace import Identity

LAYOUT_VERSION = 1
MOST_CONTEXTS = 65_536
"""Contexts remembered. One that is forgotten is made again; only `list_l2_keys` needs it remembered."""
_HASH_BYTES = 32

Layout = tuple[tuple[tuple[int, ...], ...], tuple[str, ...]]
"""Shapes, and dtypes by name, of the tensors in an object."""

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Context:
    """What the keys of one pool have in common. nbytes: size of an object, once one has been seen."""

    model: str
    kv_rank: int
    group: int
    salt: str
    layout: Layout
    pool: str
    nbytes: int = 0


@dataclass(slots=True, eq=False)
class Part:
    """The keys of a task that are in one pool. indices: their places in the task."""

    context: Context
    indices: list[int] = field(default_factory=list)
    hashes: list[str] = field(default_factory=list)


def layout_of_desc(desc: Any) -> Layout | None:
    """Of a MemoryLayoutDesc; None for one that says nothing, as LMCache's own tools give."""
    if desc is None or not desc.shapes:
        return None
    return _layout(desc.shapes, desc.dtypes)


def layout_of_object(obj: Any) -> Layout:
    """Of a MemoryObj."""
    meta = obj.meta
    return _layout(meta.shapes or [meta.shape], meta.dtypes or [meta.dtype])


def _layout(shapes: Iterable[Any], dtypes: Iterable[Any]) -> Layout:
    return tuple(tuple(int(n) for n in shape) for shape in shapes), tuple(str(dtype) for dtype in dtypes)


def page_hash(chunk_hash: bytes) -> str:
    """64 hex digits: LMCache's own where it has 32 bytes, else its SHA-256."""
    if len(chunk_hash) == _HASH_BYTES:
        return chunk_hash.hex()
    return hashlib.sha256(b"lmcache chunk " + chunk_hash).hexdigest()


def server_identity(models: Models, model: str, release: str, tenant: str) -> Identity:
    """What all pages of an adapter have in common; what differs is in their contexts."""
    return Identity(
        model=model or "lmcache",
        weights=models.single or "declared:named-for-each-model",
        dtype="of-each-object",
        page_size=1,
        kind="mha",
        layer_num=1,
        head_num=1,
        head_dim=1,
        layout=f"lmcache-l2-{release}-v{LAYOUT_VERSION}",
        tenant=tenant,
    )


class Contexts:
    """Thread-safe."""

    def __init__(self, models: Models) -> None:
        self._models = models
        self._mutex = threading.Lock()
        self._made: dict[tuple[str, int, int, str, Layout], Context] = {}
        self._by_pool: dict[str, Context] = {}
        self._layouts: dict[tuple[str, int, int], Layout] = {}
        """The layout seen last; for queries that tell none."""
        self._refused: set[str] = set()

    def by_pool(self, keys: Sequence[Any], layouts: Sequence[Layout | None] | None = None) -> list[Part]:
        """The keys that can be asked for, pool by pool. layouts: of each key; None: the one seen last."""
        parts: dict[str, Part] = {}
        for index, key in enumerate(keys):
            context = self.of(key, layouts[index] if layouts is not None else None)
            if context is None:
                continue
            part = parts.get(context.pool)
            if part is None:
                part = parts[context.pool] = Part(context)
            part.indices.append(index)
            part.hashes.append(page_hash(key.chunk_hash))
        return list(parts.values())

    def of(self, key: Any, layout: Layout | None = None) -> Context | None:
        """None where nobody has told a layout yet, and for a model without weights, which is logged once."""
        model, kv_rank, group, salt = key.model_name, key.kv_rank, key.object_group_id, key.cache_salt
        layout = layout or self._layouts.get((model, kv_rank, group))
        if layout is None:
            return None
        found = self._made.get((model, kv_rank, group, salt, layout))
        return found or self._make(model, kv_rank, group, salt, layout)

    def _make(self, model: str, kv_rank: int, group: int, salt: str, layout: Layout) -> Context | None:
        weights = self._models.weights_of(model)
        if weights is None:
            self._refuse(model)
            return None
        told = msgspec.json.encode((LAYOUT_VERSION, model, weights, kv_rank, group, salt, layout))
        context = Context(model, kv_rank, group, salt, layout, f"c_{hashlib.sha256(told).hexdigest()[:32]}")
        with self._mutex:
            _make_room(self._made)
            _make_room(self._by_pool)
            _make_room(self._layouts)
            self._layouts[model, kv_rank, group] = layout
            self._by_pool[context.pool] = context
            return self._made.setdefault((model, kv_rank, group, salt, layout), context)

    def _refuse(self, model: str) -> None:
        with self._mutex:
            first = model not in self._refused
            self._refused.add(model)
        if first:
            _log.error(
                "nothing is stored or found for the model %r: the adapter_params say the weights of %s only. "
                'Name it in "models": {%r: "/folder of its safetensors, or declared:NAME-AND-REVISION"}',
                model,
                self._models.listed(),
                model,
            )

    def of_pool(self, pool: str) -> Context | None:
        """The context behind a pool's name, if this process has met it."""
        return self._by_pool.get(pool)


def _make_room(kept: dict[Any, Any]) -> None:
    if len(kept) >= MOST_CONTEXTS:
        del kept[next(iter(kept))]
