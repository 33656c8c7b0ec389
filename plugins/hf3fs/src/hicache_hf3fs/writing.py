"""From pages into slots: reserved, filled, then made visible."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

from hicache_core.storage.legality import legal_positions
from hicache_core.types import IoContext, Outcome, Page
from hicache_hf3fs.counters import Counters
from hicache_hf3fs.errors import IndexFailure, outcome_of_write
from hicache_hf3fs.index.interface import EXISTS, FULL, SLOT_UNIT, WAIT, Index, Placed, Slot
from hicache_hf3fs.jobs import Job, Mover
from hicache_hf3fs.options import Sync
from hicache_hf3fs.slotfiles import SlotFiles

_ROUNDS = 8
"""How often we ask again for slots after emptying others; somebody else may have taken the room."""


class Writer:
    """Writes pages of one open store. Thread-safe."""

    def __init__(self, index: Index, mover: Mover, files: SlotFiles, counters: Counters, sync: Sync) -> None:
        self._index, self._mover, self._files, self._counters = index, mover, files, counters
        self._sync = {"none": None, "data": os.fdatasync, "full": os.fsync}[sync]
        self._owed: deque[Slot] = deque()
        """Reserved slots that could not be given back when their pages failed; the next commit does it."""

    def write(self, keys: Sequence[str], pages: Sequence[Page], ctx: IoContext) -> list[Outcome]:
        """Store each page. Of those that there is no room for the last are REJECTED. Raises IndexFailure."""
        outcomes = [Outcome.REJECTED] * len(keys)
        todo = legal_positions(keys)
        while todo:  # a key that comes twice is set twice, one after the other
            first: dict[str, int] = {}
            for i in todo:
                first.setdefault(keys[i], i)
            now = list(first.values())
            self._write_once(keys, pages, now, outcomes, ctx)
            chosen = set(now) if len(now) < len(todo) else None
            todo = [] if chosen is None else [i for i in todo if i not in chosen]
        self._counters.add(rejected=outcomes.count(Outcome.REJECTED))
        return outcomes

    def trim(self) -> None:
        """Give the blocks of all free slots back to the file system. Raises IndexFailure."""
        while self._files.can_punch and (slots := self._index.spare(1024, None)):
            self._hollow(slots, None)

    def shrink(self) -> None:
        """Evict what is above a cap that was lowered. Raises IndexFailure."""
        while self._files.can_punch and (slots := self._index.excess(1024, None)):
            self._hollow(slots, None)

    def _write_once(
        self,
        keys: Sequence[str],
        pages: Sequence[Page],
        todo: Sequence[int],
        outcomes: list[Outcome],
        ctx: IoContext,
    ) -> None:
        replace, deadline = ctx.replace, ctx.deadline
        started = time.monotonic()
        jobs: list[Job] = []
        try:
            seconds = self._reserve(keys, pages, todo, outcomes, jobs, replace, deadline)
            limit = deadline
            if seconds is not None:  # beyond it the slots may be somebody else's
                limit = started + seconds if deadline is None else min(deadline, started + seconds)
            moved = self._mover.write(jobs, limit, ctx.seal_page)
            self._counters.add(bytes_written=moved)
            self._sync_files(jobs)
            self._commit(keys, jobs, outcomes, replace, deadline)
        except BaseException as error:
            self._owed.extend((job.slot_bytes, job.slot) for job in jobs if not job.in_flight)
            if not isinstance(error, IndexFailure) or not jobs:
                raise
            self._counters.note(error)
            for job in jobs:
                outcomes[job.position] = outcome_of_write(error)

    def _reserve(
        self,
        keys: Sequence[str],
        pages: Sequence[Page],
        todo: Sequence[int],
        outcomes: list[Outcome],
        jobs: list[Job],
        replace: bool,
        deadline: float | None,
    ) -> float | None:
        """Fill `jobs` with the pages that have a slot; how long we hold them, in seconds."""
        seconds = None
        for _ in range(_ROUNDS):
            lengths = [sum([buffer.nbytes for buffer in pages[i]]) for i in todo]
            sizes = [-(-max(1, nbytes) // SLOT_UNIT) * SLOT_UNIT for nbytes in lengths]
            reservation = self._index.reserve(
                [keys[i] for i in todo],
                sizes,
                replace=replace,
                may_hollow=self._files.can_punch,
                deadline=deadline,
            )
            seconds = reservation.seconds
            waiting = []
            for i, nbytes, size, slot in zip(todo, lengths, sizes, reservation.slots, strict=True):
                if slot >= 0:
                    jobs.append(Job(i, pages[i], nbytes, size, slot))
                elif slot == EXISTS:
                    outcomes[i] = Outcome.EXISTS
                elif slot == WAIT:
                    waiting.append(i)
            if reservation.hollow:
                self._hollow(reservation.hollow, deadline)
            if not waiting:
                break
            todo = waiting
        return seconds

    def _hollow(self, slots: Sequence[Slot], deadline: float | None) -> None:
        """Empty slots that are held for it. Where that cannot be done they are free as they are."""
        done = []
        for slot in slots:
            with suppress(OSError):
                self._files.punch(slot)
                done.append(slot)
        if done:
            self._index.hollowed(done, deadline)
        rest = set(slots).difference(done)
        if rest:
            self._index.commit([], list(rest), replace=False, deadline=deadline)

    def _sync_files(self, jobs: Sequence[Job]) -> None:
        if self._sync is None:
            return
        try:
            self._files.sync({job.file for job in jobs if job.outcome is None}, self._sync)
        except OSError as error:
            self._counters.note(error)
            for job in jobs:
                job.fail(outcome_of_write(error))

    def _commit(
        self, keys: Sequence[str], jobs: Sequence[Job], outcomes: list[Outcome], replace: bool, deadline: float | None
    ) -> None:
        self._owed.extend(self._mover.settled())
        owed = [self._owed.popleft() for _ in range(len(self._owed))]
        good = [job for job in jobs if job.outcome is None]
        failed = [job for job in jobs if job.outcome is not None]
        free = [(job.slot_bytes, job.slot) for job in failed if not job.in_flight]
        placed = [Placed(keys[job.position], job.slot_bytes, job.slot, job.nbytes) for job in good]
        for job in failed:
            if job.outcome is not None:
                outcomes[job.position] = job.outcome
        if not placed and not free and not owed:
            return
        try:
            verdicts = self._index.commit(placed, [*free, *owed], replace=replace, deadline=deadline)
        except BaseException:
            self._owed.extend(owed)
            raise
        for job, verdict in zip(good, verdicts, strict=True):
            outcomes[job.position] = _VERDICTS[verdict]


_VERDICTS = {0: Outcome.STORED, EXISTS: Outcome.EXISTS, FULL: Outcome.TIMEOUT}
