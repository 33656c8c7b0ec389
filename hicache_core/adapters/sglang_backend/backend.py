"""hicache's hooks over an SGLang storage class."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from hicache_core.adapters.sglang_backend.loading import find_class, has_v1
from hicache_core.adapters.sglang_backend.options import SglangOptions
from hicache_core.adapters.sglang_backend.store import PeerStore
from hicache_core.plugin.spec import hookimpl
from hicache_core.types import IoContext, OpenContext, Outcome, Page

R = TypeVar("R")


class SglangBackend:
    """The namespace of a key becomes the model's name, the rest of it SGLang's key; pages become flat tensors.

    The class is constructed once for each namespace it meets and, on the v1 path, for each size of page, since
    SGLang's host pool has one.
    """

    def __init__(self, options: SglangOptions, ctx: OpenContext) -> None:
        self.options = options
        self._namespace = ctx.namespace
        cls = find_class(options)
        self._sized = options.path == "v1" or (options.path == "auto" and has_v1(cls))
        self._stores: dict[tuple[str, int | None], PeerStore] = {}
        self._opening = threading.Lock()
        self.store(ctx.namespace, None)

    def split(self, key: str) -> tuple[str, str]:
        """(model name, SGLang's key) of a physical key."""
        namespace, slash, rest = key.partition("/")
        return (namespace, rest) if slash else (self._namespace, key)

    def store(self, namespace: str, nbytes: int | None) -> PeerStore:
        """The object for a namespace, constructed when it is first asked for. nbytes: of a page; None: any size."""
        model = self.options.model_name or namespace
        with self._opening:
            if nbytes is None or not self._sized:
                known = next((store for (name, _), store in self._stores.items() if name == model), None)
                nbytes = None
            else:
                known = self._stores.get((model, nbytes))
            if known is None:
                known = self._stores[model, nbytes] = PeerStore(self.options, model, nbytes)
            return known

    @hookimpl
    def batch_exists(self, keys: Sequence[str], ctx: IoContext) -> int:
        """batch_exists of the class, over the runs of keys that share a namespace."""
        count, at = 0, 0
        while at < len(keys):
            namespace = self.split(keys[at])[0]
            end = next((i for i in range(at, len(keys)) if self.split(keys[i])[0] != namespace), len(keys))
            found = self.store(namespace, None).exists([self.split(key)[1] for key in keys[at:end]])
            count += found
            if found < end - at:
                break
            at = end
        return count

    @hookimpl
    def batch_get(self, keys: Sequence[str], pages: Sequence[Page], ctx: IoContext) -> list[Outcome]:
        """Through memory of our own: a class may keep a tensor for longer than a page is lent."""
        targets = [bytearray(sum(buffer.nbytes for buffer in page)) for page in pages]
        outcomes = self._by_store(keys, targets, PeerStore.get)
        for page, target, outcome in zip(pages, targets, outcomes, strict=True):
            if outcome is Outcome.HIT:
                _scatter(target, page)
        return outcomes

    @hookimpl
    def batch_set(self, keys: Sequence[str], pages: Sequence[Page], ctx: IoContext) -> list[Outcome]:
        """The concatenation of a page's buffers, seal included, is the value."""
        return self._by_store(keys, [bytearray().join(page) for page in pages], PeerStore.set)

    @hookimpl
    def clear(self, namespace: str) -> int | None:
        """The class's clear(), where the options allow it; how many there were it does not say: 0."""
        if not self.options.clear:
            return None
        self.store(namespace, None).clear()
        return 0

    @hookimpl
    def close(self) -> None:
        """Close every object."""
        with self._opening:
            stores, self._stores = list(self._stores.values()), {}
        for store in stores:
            store.close()

    def _by_store(
        self,
        keys: Sequence[str],
        data: Sequence[bytearray],
        call: Callable[[PeerStore, Sequence[str], Sequence[bytearray]], list[Outcome]],
    ) -> list[Outcome]:
        """One call for each namespace (and page size) in the batch; the answers in the order of the keys."""
        groups: dict[tuple[str, int | None], list[int]] = {}
        for i, key in enumerate(keys):
            groups.setdefault((self.split(key)[0], len(data[i]) if self._sized else None), []).append(i)
        outcomes = [Outcome.MISS] * len(keys)
        for (namespace, nbytes), members in groups.items():
            store = self.store(namespace, nbytes)
            answers = call(store, [self.split(keys[i])[1] for i in members], [data[i] for i in members])
            for i, answer in zip(members, answers, strict=True):
                outcomes[i] = answer
        return outcomes


def _scatter(data: bytearray, page: Page) -> None:
    at = 0
    for buffer in page:
        buffer[:] = memoryview(data)[at : at + buffer.nbytes]
        at += buffer.nbytes


def open_sglang(options: SglangOptions, ctx: OpenContext) -> SglangBackend:
    """The factory. PluginError for a class that is not there, OpenError for one that cannot be constructed."""
    return SglangBackend(options, ctx)
