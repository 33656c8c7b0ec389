"""Batches of pages: one request per page, many in flight, one outcome per page in order.

A set joins the buffers of a page once, into memory of its own: what is in flight never depends on lent memory. A get
copies once, from the client's buffer into the page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from hicache_core.storage.staging import copy_bytes
from hicache_core.types import IoContext, Outcome, Page
from hicache_s3.daemon_pool import DaemonPool
from hicache_s3.failures import outcome_of_read, outcome_of_write, short
from hicache_s3.names import name_of
from hicache_s3.opening import Store
from hicache_s3.sweep import Over, Sweep

_GIVES_UP_AFTER = 4
"""Failures of a call, without one success, after which its other pages are not tried: the server is not there."""
_BROKEN = frozenset({Outcome.UNAVAILABLE, Outcome.TIMEOUT})


class Pages:
    """Reads, writes and removes pages of one open store. Thread-safe."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._counters = store.counters

    def read(self, keys: Sequence[str], pages: Sequence[Page], ctx: IoContext) -> list[Outcome]:
        """Fill each page; `ctx.lengths` takes what was stored, where pages may be larger than that."""
        client, counters, lengths = self._store.client, self._counters, ctx.lengths

        def one(batch: Batch, number: int, path: str) -> Outcome:
            page = pages[number]
            room = sum(map(len, page))
            try:
                data = memoryview(client.read(path, room + 1)).cast("B")
            except Exception as error:
                if not room and outcome_of_read(error) is Outcome.CORRUPT:
                    return Outcome.HIT  # an empty page, whose range no server can satisfy
                raise
            counters.add(bytes_read=len(data))
            if len(data) != room if lengths is None else len(data) > room:
                return Outcome.CORRUPT
            with batch.sweep.lent():
                if lengths is not None:
                    lengths[number] = len(data)
                _scatter(data, page)
                ctx.verify_page(number)
            return Outcome.HIT

        return self._batch(keys, one, outcome_of_read, Outcome.MISS, self._store.threads.read, ctx.deadline)

    def write(self, keys: Sequence[str], pages: Sequence[Page], ctx: IoContext) -> list[Outcome]:
        """Store each page; of a key that comes twice in the batch the first one first."""
        client, counters = self._store.client, self._counters

        def one(batch: Batch, number: int, path: str) -> Outcome:
            with batch.sweep.lent():
                ctx.seal_page(number)
                data = _joined(pages[number])
            if ctx.replace:
                client.replace(path, data)
            elif not client.create(path, data):
                return Outcome.EXISTS
            counters.add(bytes_written=len(data))
            return Outcome.STORED

        done = self._batch(keys, one, outcome_of_write, Outcome.REJECTED, self._store.threads.write, ctx.deadline)
        counters.add(rejected=done.count(Outcome.REJECTED))
        return done

    def remove(self, keys: Sequence[str], deadline: float | None) -> list[Outcome]:
        """Remove each object; S3 does not say whether there was one, so it is looked for first."""
        client = self._store.client

        def one(batch: Batch, number: int, path: str) -> Outcome:
            if not client.exists(path):
                return Outcome.MISS
            client.remove(path)
            return Outcome.HIT

        return self._batch(keys, one, outcome_of_read, Outcome.MISS, self._store.threads.write, deadline)

    def _batch(
        self,
        keys: Sequence[str],
        one: Callable[[Batch, int, str], Outcome],
        outcome_of: Callable[[BaseException], Outcome],
        illegal: Outcome,
        pool: DaemonPool,
        deadline: float | None,
    ) -> list[Outcome]:
        outcomes = [Outcome.TIMEOUT] * len(keys)
        for turn in turns(keys):
            batch = Batch(self._store, [keys[i] for i in turn], illegal)
            batch.numbers = turn
            for i, outcome in zip(turn, batch.run(one, outcome_of, pool, deadline), strict=True):
                outcomes[i] = outcome
        return outcomes


class Batch:
    """Keys of which none comes twice, on their way through the pool.

    What has not ended by the deadline is TIMEOUT. After the first few failures without a success the rest is not
    tried, and UNAVAILABLE.
    """

    sweep: Sweep
    numbers: Sequence[int]
    """Their positions in the caller's lists."""

    def __init__(self, store: Store, keys: Sequence[str], illegal: Outcome) -> None:
        self._store = store
        names = [name_of(key) for key in keys]
        self._paths = [None if name is None else f"{store.prefix}{name}" for name in names]
        self.outcomes = [illegal if name is None else Outcome.TIMEOUT for name in names]
        self._legal = [i for i, name in enumerate(names) if name is not None]
        self._failures = self._successes = 0

    def run(
        self,
        one: Callable[[Batch, int, str], Outcome],
        outcome_of: Callable[[BaseException], Outcome],
        pool: DaemonPool,
        deadline: float | None,
    ) -> list[Outcome]:
        """One outcome per key."""
        ended = list(self.outcomes)

        def work(number: int) -> None:
            i = self._legal[number]
            path = self._paths[i]
            assert path is not None
            try:
                outcome = one(self, self.numbers[i], path)
            except Over:
                raise
            except BaseException as error:  # noqa: BLE001 - an outcome of this page; a panic in Rust is no Exception
                outcome = self._failed(outcome_of(error), error)
            else:
                self._successes += 1
            ended[i] = outcome
            if self._failures >= _GIVES_UP_AFTER and not self._successes:
                self.sweep.stop()

        self.sweep = Sweep(pool, len(self._legal), work, window=self._store.options.concurrency)
        in_time = self.sweep.start().finish(deadline)
        self._store.counters.add(requests=len(self._legal))
        outcomes = list(ended)  # what lands from here on is told to nobody
        if in_time and Outcome.TIMEOUT in outcomes and self._failures >= _GIVES_UP_AFTER:
            return [Outcome.UNAVAILABLE if outcome is Outcome.TIMEOUT else outcome for outcome in outcomes]
        return outcomes

    def _failed(self, outcome: Outcome, error: BaseException) -> Outcome:
        if outcome in _BROKEN:
            self._failures += 1
        else:
            self._successes += 1
        if outcome in _BROKEN or outcome is Outcome.REJECTED:
            self._store.counters.failed(self._store.hide(short(error)))
        return outcome


def turns(keys: Sequence[str]) -> Iterator[list[int]]:
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


def _scatter(data: memoryview, page: Page) -> None:
    """Copy an object into a page, which has room for it."""
    start = 0
    for buffer in page:
        piece = data[start : start + len(buffer)]
        copy_bytes(buffer[: len(piece)], piece)
        start += len(piece)
