"""Batches of pages: one request per page, many in flight, one outcome per page in order.

A set joins the buffers of a page once, into memory of its own: what is in flight never depends on lent memory. A get
copies once, from the client's buffer into the page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from hicache_core.errors import StorageError
from hicache_core.types import Outcome, Page
from hicache_s3.failures import TooSlow, is_missing, outcome_of_read, outcome_of_write, short
from hicache_s3.flight import Landed, Request
from hicache_s3.names import name_of
from hicache_s3.opening import Store

_HOLDS_THE_GIL_BELOW = 128 << 10
"""A memoryview assignment is faster below, numpy.copyto (which releases the GIL) from there on."""
_GIVES_UP_AFTER = 4
"""Failures of a call, without one success, after which its other pages are not tried: the server is not there."""

_BROKEN = frozenset({Outcome.UNAVAILABLE, Outcome.TIMEOUT})


class Pages:
    """Reads and writes pages of one open store. Thread-safe."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._counters = store.counters

    def run_of(self, keys: Sequence[str], deadline: float | None) -> int:
        """How many keys from the start have an object. Raises StorageError where that cannot be told."""
        found: dict[int, bool] = {}
        run = 0
        for number, there in self._ask(keys, deadline):
            found[number] = there
            while found.get(run):
                run += 1
            if found.get(run) is False:
                return run
        return run

    def contains(self, keys: Sequence[str], deadline: float | None) -> list[bool]:
        """Each key. Raises StorageError where that cannot be told."""
        present = [False] * len(keys)
        for number, there in self._ask(keys, deadline):
            present[number] = there
        return present

    def read(
        self, keys: Sequence[str], pages: Sequence[Page], deadline: float | None, lengths: list[int] | None
    ) -> list[Outcome]:
        """Fill each page; `lengths` takes what was stored, where pages may be larger than that."""
        rooms = [sum(map(len, page)) for page in pages]
        client = self._store.client
        moved = 0

        def request(number: int, path: str) -> Request:
            return lambda: client.read(path, rooms[number] + 1)

        def landed(at: Landed) -> Outcome:
            nonlocal moved
            data = memoryview(at.value).cast("B")
            moved += len(data)
            return _deliver(data, pages[at.number], rooms[at.number], lengths, at.number)

        def failed(number: int, error: BaseException) -> Outcome:
            outcome = outcome_of_read(error)
            if outcome is Outcome.CORRUPT and not rooms[number]:
                return Outcome.HIT  # an empty page, whose range no server can satisfy
            return outcome

        outcomes = self._each(keys, request, landed, failed, Outcome.MISS, deadline)
        self._counters.add(bytes_read=moved)
        return outcomes

    def write(
        self, keys: Sequence[str], pages: Sequence[Page], deadline: float | None, *, replace: bool
    ) -> list[Outcome]:
        """Store each page; of a key that comes twice in the batch the first one first."""
        client = self._store.client
        outcomes = [Outcome.TIMEOUT] * len(keys)
        for turn in _turns(keys):
            some = [pages[i] for i in turn]
            moved = 0

            def request(number: int, path: str, some: Sequence[Page] = some) -> Request:
                data = _joined(some[number])
                if replace:
                    return lambda: client.replace(path, data)
                return lambda: client.create(path, data)

            def landed(at: Landed, some: Sequence[Page] = some) -> Outcome:
                nonlocal moved
                if at.value is False:
                    return Outcome.EXISTS
                moved += sum(map(len, some[at.number]))
                return Outcome.STORED

            def failed(number: int, error: BaseException) -> Outcome:
                return outcome_of_write(error)

            done = self._each([keys[i] for i in turn], request, landed, failed, Outcome.REJECTED, deadline)
            self._counters.add(bytes_written=moved, rejected=done.count(Outcome.REJECTED))
            for i, outcome in zip(turn, done, strict=True):
                outcomes[i] = outcome
        return outcomes

    def remove(self, keys: Sequence[str], deadline: float | None) -> list[Outcome]:
        """Remove each object; S3 does not say whether there was one, so it is looked for first."""
        client = self._store.client

        async def look_and_remove(path: str) -> bool:
            there = await client.exists(path)
            if there:
                await client.remove(path)
            return there

        def request(number: int, path: str) -> Request:
            return lambda: look_and_remove(path)

        def landed(at: Landed) -> Outcome:
            return Outcome.HIT if at.value else Outcome.MISS

        def failed(number: int, error: BaseException) -> Outcome:
            return outcome_of_read(error)

        outcomes = [Outcome.TIMEOUT] * len(keys)
        for turn in _turns(keys):
            done = self._each([keys[i] for i in turn], request, landed, failed, Outcome.MISS, deadline)
            for i, outcome in zip(turn, done, strict=True):
                outcomes[i] = outcome
        return outcomes

    def _each(
        self,
        keys: Sequence[str],
        request: Callable[[int, str], Request],
        landed: Callable[[Landed], Outcome],
        failed: Callable[[int, BaseException], Outcome],
        illegal: Outcome,
        deadline: float | None,
    ) -> list[Outcome]:
        """One outcome per key. What has not landed by the deadline is TIMEOUT; after the first few failures without
        a success the rest is not tried."""
        outcomes, paths, legal = self._paths(keys, illegal)
        failures, successes = 0, 0
        fly = self._store.loop.fly(
            len(legal),
            lambda n: request(legal[n], paths[n]),
            window=self._store.options.concurrency,
            deadline=deadline,
        )
        for at in fly:
            number = legal[at.number]
            if at.error is None:
                outcomes[number] = landed(Landed(number, at.value))
                successes += 1
                continue
            outcomes[number] = self._noted(failed(number, at.error), at.error)
            failures += outcomes[number] in _BROKEN
            successes += outcomes[number] not in _BROKEN
            if failures >= _GIVES_UP_AFTER and not successes:
                fly.close()
                outcomes = [Outcome.UNAVAILABLE if o is Outcome.TIMEOUT else o for o in outcomes]
                break
        self._counters.add(requests=len(legal))
        return outcomes

    def _paths(self, keys: Sequence[str], illegal: Outcome) -> tuple[list[Outcome], list[str], list[int]]:
        """Outcomes to begin with, the paths of the legal keys, and which keys these are."""
        prefix = self._store.prefix
        names = [name_of(key) for key in keys]
        outcomes = [Outcome.TIMEOUT if name is not None else illegal for name in names]
        legal = [i for i, name in enumerate(names) if name is not None]
        return outcomes, [f"{prefix}{names[i]}" for i in legal], legal

    def _noted(self, outcome: Outcome, error: BaseException) -> Outcome:
        if outcome in _BROKEN or outcome is Outcome.REJECTED:
            self._counters.failed(self._store.hide(short(error)))
        return outcome

    def _ask(self, keys: Sequence[str], deadline: float | None) -> Iterator[tuple[int, bool]]:
        """Which keys have an object, as the answers come. Raises StorageError."""
        _, paths, legal = self._paths(keys, Outcome.MISS)
        client, answered = self._store.client, 0
        for number in sorted(set(range(len(keys))) - set(legal)) if len(legal) < len(keys) else ():
            yield number, False
        window = self._store.options.exists_concurrency
        for at in self._store.loop.fly(len(legal), _asking(client.exists, paths), window=window, deadline=deadline):
            answered += 1
            if at.error is not None and not is_missing(at.error):
                self._counters.failed(self._store.hide(short(at.error)))
                raise StorageError(f"exists failed: {self._store.hide(short(at.error))}") from at.error
            self._counters.add(requests=1)
            yield legal[at.number], at.error is None and bool(at.value)
        if answered < len(legal):
            raise StorageError(
                f"exists of {len(legal)} keys: {answered} answers came before the deadline"
            ) from TooSlow()


def _asking(exists: Callable[[str], Any], paths: Sequence[str]) -> Callable[[int], Request]:
    def request(number: int) -> Request:
        path = paths[number]
        return lambda: exists(path)

    return request


def _turns(keys: Sequence[str]) -> Iterator[list[int]]:
    """The batch as lists of positions in which no key comes twice; nearly always one list."""
    if len(set(keys)) == len(keys):
        yield list(range(len(keys)))
        return
    left = list(range(len(keys)))
    while left:
        seen: set[str] = set()
        turn: list[int] = []
        later: list[int] = []
        for i in left:
            (later if keys[i] in seen else turn).append(i)
            seen.add(keys[i])
        yield turn
        left = later


def _joined(page: Page) -> bytes:
    """The page's bytes in memory of their own."""
    return bytes(page[0]) if len(page) == 1 else b"".join(page)


def _deliver(data: memoryview, page: Page, room: int, lengths: list[int] | None, number: int) -> Outcome:
    """Copy an object into a page. CORRUPT, and nothing touched, where its length does not fit."""
    if len(data) != room if lengths is None else len(data) > room:
        return Outcome.CORRUPT
    if lengths is not None:
        lengths[number] = len(data)
    start = 0
    for buffer in page:
        piece = data[start : start + len(buffer)]
        if len(piece) < _HOLDS_THE_GIL_BELOW:
            buffer[: len(piece)] = piece
        else:
            np.copyto(np.frombuffer(buffer, np.uint8, len(piece)), np.frombuffer(piece, np.uint8))
        start += len(piece)
    return Outcome.HIT
