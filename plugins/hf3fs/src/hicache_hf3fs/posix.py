"""Slots by preadv and pwritev on the mounted path, straight from and into the pages' buffers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hicache_core.types import Buffer, Outcome
from hicache_hf3fs.counters import Counters
from hicache_hf3fs.errors import outcome_of_write
from hicache_hf3fs.index.interface import SLOT_UNIT, Slot
from hicache_hf3fs.jobs import IOV_MAX, AtPage, Job, Run, at_no_page, runs
from hicache_hf3fs.slotfiles import SlotFiles

_Vector = Callable[[int, Sequence[Buffer], int], int]
_ZEROS = memoryview(bytes(SLOT_UNIT))


@dataclass(frozen=True, slots=True)
class _Way:
    """One direction. gap: lies between pages. short: the outcome of a page whose slot ends too soon. before, after:
    told of each page before it is read from, and once it is filled."""

    vector: _Vector
    gap: Buffer
    short: Outcome
    before: AtPage = at_no_page
    after: AtPage = at_no_page


class PosixMover:
    """Moves pages with system calls. Thread-safe."""

    name = "posix"

    def __init__(self, files: SlotFiles, counters: Counters) -> None:
        self._files, self._counters = files, counters
        self._unused = memoryview(bytearray(SLOT_UNIT))
        """What lies between pages is read into here, by all threads at once, and never looked at."""

    def read(self, jobs: Sequence[Job], deadline: float | None, verify: AtPage) -> int:
        """See Mover. A slot that is shorter than its page (a file cut short) is CORRUPT."""
        return self._move(jobs, deadline, _Way(os.preadv, self._unused, Outcome.CORRUPT, after=verify))

    def write(self, jobs: Sequence[Job], deadline: float | None, seal: AtPage) -> int:
        """See Mover."""
        return self._move(jobs, deadline, _Way(os.pwritev, _ZEROS, Outcome.REJECTED, before=seal))

    def settled(self) -> list[Slot]:
        """A system call is over when it has returned."""
        return []

    def close(self, *, ours: bool = True) -> None:
        """Nothing is held."""

    def _move(self, jobs: Sequence[Job], deadline: float | None, way: _Way) -> int:
        total = 0
        for run in runs(jobs, way.gap):
            if deadline is not None and time.monotonic() > deadline:
                for job in run.jobs:
                    job.outcome = Outcome.TIMEOUT
                continue
            try:
                total += self._move_run(run, way)
            except OSError as error:
                if len(run.jobs) > 1:  # one bad page must not fail its neighbours
                    total += sum(self._move_alone(job, way) for job in run.jobs)
                else:
                    self._failed(run.jobs[0], error)
        return total

    def _move_alone(self, job: Job, way: _Way) -> int:
        try:
            return self._move_run(Run([job], list(job.page), job.nbytes), way)
        except OSError as error:
            self._failed(job, error)
            return 0

    def _move_run(self, run: Run, way: _Way) -> int:
        offset, vector = run.offset, way.vector
        if vector is os.pwritev:
            self._files.reach(run.file, offset + run.nbytes)
        fd = self._files.fd(run.file)
        for job in run.jobs:
            way.before(job.position)
        done = vector(fd, run.buffers, offset) if len(run.buffers) <= IOV_MAX else 0
        if done < run.nbytes:
            done = _the_rest(vector, fd, run.buffers, offset, done, run.nbytes)
        for job in run.jobs:
            if done < run.nbytes and job.offset - offset + job.nbytes > done:
                job.outcome = way.short
            else:
                way.after(job.position)
        return done

    def _failed(self, job: Job, error: OSError) -> None:
        job.outcome = outcome_of_write(error)
        if job.outcome is not Outcome.REJECTED:
            self._counters.note(error)


def _the_rest(vector: _Vector, fd: int, buffers: Sequence[Buffer], offset: int, done: int, nbytes: int) -> int:
    """Go on until all is moved or a call moves nothing; the bytes that were moved in all."""
    rest = _after(buffers, done)
    while done < nbytes:
        moved = vector(fd, rest[:IOV_MAX], offset + done)
        if not moved:
            break
        done += moved
        rest = _after(rest, moved)
    return done


def _after(buffers: Sequence[Buffer], moved: int) -> list[Buffer]:
    """The buffers without their first `moved` bytes."""
    for index, buffer in enumerate(buffers):
        if moved < buffer.nbytes:
            return [buffer[moved:], *buffers[index + 1 :]]
        moved -= buffer.nbytes
    return []
