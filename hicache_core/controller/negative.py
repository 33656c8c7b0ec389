"""Misses that are believed for a moment, so that a prefix nobody stored is not looked up by every request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hicache_core.clock import Clock


class NegativeCache:
    """Page hashes that L3 did not have, each believed for `ttl` seconds; bounded, oldest out first.

    A key that this process wrote is never believed missing: it may have been in flight when L3 was asked.
    """

    def __init__(self, ttl: float, clock: Clock, *, capacity: int = 65536) -> None:
        self.ttl, self.capacity = ttl, capacity
        self._clock = clock
        self._expires: dict[str, float] = {}
        self._written: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._expires)

    def missing(self, page_hash: str) -> None:
        """L3 was asked for this page and does not have it."""
        if self.ttl <= 0 or page_hash in self._written:
            return
        self._expires.pop(page_hash, None)
        self._expires[page_hash] = self._clock() + self.ttl
        while len(self._expires) > self.capacity:
            del self._expires[next(iter(self._expires))]

    def written(self, page_hashes: Iterable[str]) -> None:
        """This process writes these pages; misses of them are no longer believed."""
        for page_hash in page_hashes:
            self._written[page_hash] = None
            self._expires.pop(page_hash, None)
        while len(self._written) > self.capacity:
            del self._written[next(iter(self._written))]

    def run(self, page_hashes: Sequence[str]) -> int:
        """How many pages from the start are not believed missing."""
        if not self._expires:
            return len(page_hashes)
        now = self._clock()
        for index, page_hash in enumerate(page_hashes):
            expires = self._expires.get(page_hash)
            if expires is not None:
                if now < expires:
                    return index
                del self._expires[page_hash]
        return len(page_hashes)

    def clear(self) -> None:
        """Forget everything."""
        self._expires.clear()
        self._written.clear()
