"""One object of an SGLang storage class, asked with whole pages as bytes. Its answers, not ours."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from hicache_core.adapters.sglang_backend.host_pool import POOL_PAGES, PagePool
from hicache_core.adapters.sglang_backend.loading import construct, find_class, has_v1, storage_config
from hicache_core.adapters.sglang_backend.options import SglangOptions
from hicache_core.types import Outcome


class PeerStore:
    """The class under one model name. nbytes: bytes of a page where its host pool must be made for one size.

    Pages go in and out as bytes in one piece. What the class raises is let through. pool: a host pool of SGLang's to
    register in place of our own, for whoever then calls `peer` directly.
    """

    def __init__(
        self, options: SglangOptions, model_name: str, nbytes: int | None = None, *, pool: Any = None
    ) -> None:
        self.cls = find_class(options)
        self.v1 = options.path == "v1" or (options.path == "auto" and has_v1(self.cls))
        self._layout = options.layout
        self._nbytes = nbytes or 4096
        self._pool: PagePool | None = None
        self._making = threading.Lock()

        def make_pool() -> Any:
            return self.page_pool().pool if pool is None else pool

        self.peer = construct(self.cls, options, storage_config(options, model_name), make_pool)
        if self.v1 or self._pool is not None or pool is not None:
            self.peer.register_mem_pool_host(make_pool())

    def page_pool(self) -> PagePool:
        """The host pool of the v1 path, made when it is first asked for."""
        with self._making:
            if self._pool is None:
                self._pool = PagePool(self._nbytes, self._layout)
            return self._pool

    def exists(self, keys: Sequence[str]) -> int:
        """batch_exists."""
        return int(self.peer.batch_exists(list(keys)))

    def set(self, keys: Sequence[str], pages: Sequence[bytes | bytearray]) -> list[Outcome]:
        """STORED where the class says True. Its one word for a whole generic batch is the word for each page.

        False is UNAVAILABLE: the interface has no way to say why.
        """
        found: list[Outcome] = []
        for start in range(0, len(keys), POOL_PAGES):
            some, data = list(keys[start : start + POOL_PAGES]), pages[start : start + POOL_PAGES]
            said = self._set_v1(some, data) if self.v1 else self._set(some, data)
            found.extend(Outcome.STORED if yes else Outcome.UNAVAILABLE for yes in said)
        return found

    def _set(self, keys: list[str], pages: Sequence[bytes | bytearray]) -> list[bool]:
        import torch

        values = [torch.frombuffer(bytearray(page), dtype=torch.uint8) for page in pages]
        return [bool(self.peer.batch_set(keys, values))] * len(keys)

    def _set_v1(self, keys: list[str], pages: Sequence[bytes | bytearray]) -> list[bool]:
        pool = self.page_pool()
        slots = pool.take(len(keys))
        try:
            for slot, page in zip(slots, pages, strict=True):
                pool.write(slot, page)
            said = self.peer.batch_set_v1(keys, pool.indices(slots))
            if isinstance(said, list) and len(said) > len(keys) > 0:  # SGLang asks all() of it, whatever its length
                return [all(said)] * len(keys)
            return _answers(said, "batch_set_v1", len(keys))
        finally:
            pool.give_back(slots)

    def get(self, keys: Sequence[str], targets: Sequence[bytearray]) -> list[Outcome]:
        """HIT and the bytes in the target, MISS, or CORRUPT for a tensor of another size than the page."""
        found: list[Outcome] = []
        for start in range(0, len(keys), POOL_PAGES):
            some, into = list(keys[start : start + POOL_PAGES]), targets[start : start + POOL_PAGES]
            found.extend(self._get_v1(some, into) if self.v1 else self._get(some, into))
        return found

    def _get(self, keys: list[str], targets: Sequence[bytearray]) -> list[Outcome]:
        import torch

        lent = [torch.zeros(len(target), dtype=torch.uint8) for target in targets]
        answer = self.peer.batch_get(keys, lent)
        if answer is None:
            return [Outcome.MISS] * len(keys)
        if isinstance(answer, int):  # the number of pages that were read
            answer = [tensor if i < answer else None for i, tensor in enumerate(lent)]
        return [
            Outcome.MISS if tensor is None else _copied(tensor, target)
            for tensor, target in zip(answer, targets, strict=True)
        ]

    def _get_v1(self, keys: list[str], targets: Sequence[bytearray]) -> list[Outcome]:
        pool = self.page_pool()
        slots = pool.take(len(keys))
        try:
            said = _answers(self.peer.batch_get_v1(keys, pool.indices(slots)), "batch_get_v1", len(keys))
            for slot, yes, target in zip(slots, said, targets, strict=True):
                if yes:
                    pool.read(slot, target)
            return [Outcome.HIT if yes else Outcome.MISS for yes in said]
        finally:
            pool.give_back(slots)

    def clear(self) -> Any:
        """The class's clear(), and its answer."""
        return self.peer.clear()

    def close(self) -> None:
        """The class's close(), which SGLang calls where there is one."""
        close = getattr(self.peer, "close", None)
        if close is not None:
            close()


def _answers(answer: Any, method: str, count: int) -> list[bool]:
    if not isinstance(answer, list) or len(answer) != count:
        raise TypeError(f"{method} of {count} keys answered {answer!r}; SGLang takes a list of {count} bools")
    return [bool(yes) for yes in answer]


def _copied(tensor: Any, target: bytearray) -> Outcome:
    import torch

    flat = tensor.detach().contiguous().view(torch.uint8).reshape(-1).numpy()
    if flat.nbytes != len(target):
        return Outcome.CORRUPT
    target[:] = memoryview(flat)
    return Outcome.HIT
