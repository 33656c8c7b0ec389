"""The hooks of backend `aibrix`: no page is staged, each goes as one region to or from AIBrix's connector."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import msgspec

from hicache_aibrix.region import PageRegion
from hicache_aibrix.shares import Share
from hicache_core.errors import MisuseError
from hicache_core.plugin.spec import hookimpl
from hicache_core.storage.legality import legal_positions
from hicache_core.types import IoContext, Outcome, Page


class AibrixStats(msgspec.Struct, kw_only=True):
    """What this backend has done since it opened."""

    bytes_read: int = 0
    bytes_written: int = 0
    errors: int = 0
    """Pages for which AIBrix had neither a yes nor a no."""
    last_error: str = ""


class AibrixBackend:
    """Pages behind a connector of AIBrix. Thread-safe."""

    def __init__(self, share: Share) -> None:
        self._share = share
        self._lock = threading.Lock()
        self._stats = AibrixStats()
        self._closed = False

    @property
    def connector(self) -> Any:
        """The connector itself, for the back door."""
        return self._share.store.connector

    @hookimpl
    def batch_exists(self, keys: Sequence[str], ctx: IoContext) -> int:
        """See the spec. The first key alone, since most runs end there, then the others at once."""
        for start, some in ((0, keys[:1]), (1, keys[1:])):
            present = self.batch_contains(some, ctx)
            if not all(present):
                return start + present.index(False)
        return len(keys)

    @hookimpl
    def batch_contains(self, keys: Sequence[str], ctx: IoContext) -> list[bool]:
        """See the spec."""
        self._check_open()
        legal = legal_positions(keys)
        found = self._share.store.exists([keys[index] for index in legal], ctx.deadline)
        present = dict(zip(legal, found, strict=True))
        return [present.get(index, False) for index in range(len(keys))]

    @hookimpl
    def batch_get(self, keys: Sequence[str], pages: Sequence[Page], ctx: IoContext) -> list[Outcome]:
        """See the spec."""
        legal, regions = self._regions(keys, pages, replace=False)
        try:
            answers = self._share.store.get([keys[index] for index in legal], regions, ctx.deadline)
        finally:
            _revoke(regions)
        outcomes = self._outcomes(len(keys), legal, answers, Outcome.MISS)
        moved = sum(region.length for region in regions if region.filled)
        with self._lock:
            self._stats.bytes_read += moved
        return outcomes

    @hookimpl
    def batch_set(self, keys: Sequence[str], pages: Sequence[Page], ctx: IoContext) -> list[Outcome]:
        """See the spec."""
        legal, regions = self._regions(keys, pages, replace=ctx.replace)
        try:
            answers = self._share.store.put([keys[index] for index in legal], regions, ctx.deadline)
        finally:
            _revoke(regions)
        outcomes = self._outcomes(len(keys), legal, answers, Outcome.REJECTED)
        moved = sum(r.length for i, r in zip(legal, regions, strict=True) if outcomes[i] is Outcome.STORED)
        with self._lock:
            self._stats.bytes_written += moved
        return outcomes

    @hookimpl
    def delete(self, keys: Sequence[str], ctx: IoContext) -> list[Outcome]:
        """See the spec."""
        self._check_open()
        legal = legal_positions(keys)
        answers = self._share.store.remove([keys[index] for index in legal], ctx.deadline)
        return self._outcomes(len(keys), legal, answers, Outcome.MISS)

    @hookimpl
    def stats(self) -> AibrixStats:
        """See the spec."""
        with self._lock:
            return msgspec.structs.replace(self._stats)

    @hookimpl
    def close(self) -> None:
        """See the spec."""
        with self._lock:
            closed, self._closed = self._closed, True
        if not closed:
            self._share.give_back()

    def _check_open(self) -> None:
        if self._closed:
            raise MisuseError("this aibrix backend is closed")

    def _regions(
        self, keys: Sequence[str], pages: Sequence[Page], *, replace: bool
    ) -> tuple[list[int], list[PageRegion]]:
        self._check_open()
        legal = legal_positions(keys)
        return legal, [PageRegion(pages[index], replace=replace) for index in legal]

    def _outcomes(self, count: int, legal: list[int], answers: list[Any], otherwise: Outcome) -> list[Outcome]:
        """An outcome per key; what went wrong with a page is counted and kept for stats."""
        outcomes = [otherwise] * count
        for index, answer in zip(legal, answers, strict=True):
            if isinstance(answer, Outcome):
                outcomes[index] = answer
            elif isinstance(answer, TimeoutError):
                outcomes[index] = Outcome.TIMEOUT
            else:
                outcomes[index] = Outcome.UNAVAILABLE
                with self._lock:
                    self._stats.errors += 1
                    self._stats.last_error = f"{type(answer).__name__}: {answer}"
        return outcomes


def _revoke(regions: Sequence[PageRegion]) -> None:
    for region in regions:
        region.revoke()
