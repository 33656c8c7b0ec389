"""From slots into pages."""

from __future__ import annotations

import time
from collections.abc import Sequence

from hicache_core.types import IoContext, Outcome, Page
from hicache_hf3fs.counters import Counters
from hicache_hf3fs.index.interface import Index, Row, askable
from hicache_hf3fs.jobs import Job, Mover

_ATTEMPTS = 16
"""How often a page is looked up again whose slot was given away while it was read (replaced, say)."""


class Reader:
    """Reads pages of one open store. Thread-safe."""

    def __init__(self, index: Index, mover: Mover, counters: Counters, touch_interval: float) -> None:
        self._index, self._mover, self._counters = index, mover, counters
        self._touch_interval = touch_interval

    def read(self, keys: Sequence[str], pages: Sequence[Page], ctx: IoContext) -> list[Outcome]:
        """Fill each page from its slot. Raises IndexFailure where the index cannot be asked."""
        outcomes = [Outcome.MISS] * len(keys)
        keys = askable(keys)
        todo = list(range(len(keys)))
        for _ in range(_ATTEMPTS):
            if not todo:
                break
            todo = self._attempt(keys, pages, todo, outcomes, ctx)
        return outcomes

    def _attempt(
        self,
        keys: Sequence[str],
        pages: Sequence[Page],
        todo: Sequence[int],
        outcomes: list[Outcome],
        ctx: IoContext,
    ) -> list[int]:
        """Look up and read; the positions of pages whose slots were given away meanwhile."""
        asked = keys if len(todo) == len(keys) else [keys[i] for i in todo]
        epoch, rows = self._index.lookup(asked, ctx.deadline)
        jobs: list[Job] = []
        stale: list[int] = []
        old = time.time() - self._touch_interval
        for i, row in zip(todo, rows, strict=True):
            if row is None:
                outcomes[i] = Outcome.MISS
                continue
            nbytes = sum([buffer.nbytes for buffer in pages[i]])
            if row.nbytes != nbytes:
                outcomes[i] = Outcome.CORRUPT
                continue
            jobs.append(Job(i, pages[i], nbytes, row.slot_bytes, row.slot, row.id))
            if _is_stale(row, old):
                stale.append(row.id)
        if not jobs:
            return []
        moved = self._mover.read(jobs, ctx.deadline, ctx.verify_page)
        there = self._index.still(epoch, [job.id for job in jobs], stale, ctx.deadline)
        again = []
        for job in jobs:
            if there is not None and job.id not in there:
                outcomes[job.position] = Outcome.MISS
                again.append(job.position)
            else:
                outcomes[job.position] = Outcome.HIT if job.outcome is None else job.outcome
        self._counters.add(bytes_read=moved, raced=len(again))
        return again


def _is_stale(row: Row, old: float) -> bool:
    """Whether the time of last use is to be renewed; also one from the future (a clock was set back)."""
    return row.used <= old or row.used > time.time() + 60.0
