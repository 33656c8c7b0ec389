"""Pages on their way between buffers and slots, and how neighbours are moved in one system call. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from hicache_core.types import Buffer, Outcome, Page
from hicache_hf3fs.index.interface import STRIPE_SLOTS, Slot, place

IOV_MAX = 1024
"""Buffers in one preadv or pwritev call, at most (Linux: UIO_MAXIOV)."""
_RUN_BYTES = 1 << 20
"""After so many bytes a run ends: its pages are sealed before and judged after it, while in a core's cache."""

AtPage: TypeAlias = "Callable[[int], None]"
"""Told of the position of a page in its batch."""


def at_no_page(position: int) -> None:
    """Nobody wants to know."""


@dataclass(slots=True)
class Job:
    """One page and its slot. outcome: None while all is well."""

    position: int
    """Of the page in the batch."""
    page: Page
    nbytes: int
    slot_bytes: int
    slot: int
    id: int = 0
    """The row's, for pages that are read."""
    outcome: Outcome | None = None
    in_flight: bool = False
    """The store may still be writing into or reading from the slot."""

    @property
    def offset(self) -> int:
        """Where the slot begins in its file."""
        return place(self.slot)[1] * self.slot_bytes

    @property
    def file(self) -> tuple[int, int]:
        """(slot_bytes, number of the file)."""
        return self.slot_bytes, place(self.slot)[0]

    def fail(self, outcome: Outcome) -> None:
        """Note the first thing that went wrong."""
        if self.outcome is None:
            self.outcome = outcome


@dataclass(slots=True)
class Run:
    """Jobs whose slots follow each other in one file, and all their buffers in order, gaps included."""

    jobs: list[Job]
    buffers: list[Buffer]
    nbytes: int

    @property
    def file(self) -> tuple[int, int]:
        """The file."""
        return self.jobs[0].file

    @property
    def offset(self) -> int:
        """Where the run begins in the file."""
        return self.jobs[0].offset


class Mover(Protocol):
    """Moves jobs. Sets `outcome` of those that fail (and of none else); raises nothing for one page's failure."""

    name: str

    def read(self, jobs: Sequence[Job], deadline: float | None, verify: AtPage) -> int:
        """Fill the pages, and tell `verify` of each that is in place; the bytes that were moved."""

    def write(self, jobs: Sequence[Job], deadline: float | None, seal: AtPage) -> int:
        """Fill the slots, and tell `seal` of each page before it is read; the bytes that were moved."""

    def settled(self) -> list[Slot]:
        """Slots of jobs that were `in_flight` and are no more."""

    def close(self, *, ours: bool = True) -> None:
        """Let go of everything; ours False: in a forked child."""


def runs(jobs: Sequence[Job], gap: Buffer) -> Iterator[Run]:
    """Jobs in the order of their slots, neighbours together.

    gap: 4096 bytes that are read into or written from where a page leaves the end of its slot unused.
    """
    run: Run | None = None
    for job in sorted(jobs, key=lambda job: (job.slot_bytes, job.slot)):
        if run is not None:
            last = run.jobs[-1]
            rest = last.slot_bytes - last.nbytes
            if (
                job.slot_bytes == last.slot_bytes
                and job.slot == last.slot + 1
                and job.slot % STRIPE_SLOTS
                and len(run.buffers) + len(job.page) + 1 <= IOV_MAX
                and run.nbytes + job.nbytes <= _RUN_BYTES
                and rest <= len(gap)
            ):
                if rest:
                    run.buffers.append(gap[:rest])
                run.jobs.append(job)
                run.buffers += job.page
                run.nbytes += rest + job.nbytes
                continue
            yield run
        run = Run([job], list(job.page), job.nbytes)
    if run is not None:
        yield run
