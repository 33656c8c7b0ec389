"""Pages between registered memory and open files: a run of transfers, each of a few pages.

A transfer is begun before the one before it has ended, so that an engine that works beside us is never idle. Files
are opened for one transfer at a time: two threads that open files one after the other do little but wait for each
other's GIL, and an engine that does its work when it is asked (io_uring on cached pages) lets the other thread open
meanwhile. Whole calls and transfers of 1 to 16 MiB were measured; smaller ones come back for the GIL too often.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from hicache_file.options import DIRECT_ALIGNMENT
from hicache_file.pageio import read_page, read_page_direct, write_page, write_page_direct

from hicache_core.storage.lent_memory import Extent, address_of
from hicache_core.storage.staging import copy_page
from hicache_core.types import Page
from hicache_nixl.agents import Agent, NixlError, Transfer

TRANSFER_BYTES = 4 << 20
"""A transfer has no further page once it has so many bytes."""

FILES = 128
"""Pages under way at once, each with an open file."""


def padded(nbytes: int) -> int:
    """Bytes that a page takes in an arena."""
    return -(-nbytes // DIRECT_ALIGNMENT) * DIRECT_ALIGNMENT


class CutShort(OSError):
    """A file that was shorter than when it was opened."""


@dataclass(slots=True)
class Job:
    """A page, its position in the batch, and the open file that it goes to or comes from. error: why it did not."""

    position: int
    fd: int
    page: Page
    nbytes: int
    error: OSError | None = None
    parts: list[Extent] = field(default_factory=list)
    """Of each buffer that has any bytes; filled in by the run."""
    straight: bool = True
    """All of them are registered, and aligned where that counts."""


AtJob: TypeAlias = "Callable[[Job], None]"


@dataclass(slots=True)
class _Going:
    """A transfer under way (None: it needs none), its pages, what was lent for it, and the places in the arena of
    pages that do not go straight."""

    jobs: Sequence[Job]
    lent: Any = None
    transfer: Transfer | None = None
    bounced: list[tuple[Job, memoryview]] = field(default_factory=list)


class Run:
    """The pages of one call, on an agent that nobody else uses meanwhile.

    covers: whether an extent is registered. after: told of each job once it has ended, well or not. by_nixl,
    by_system_calls, bounced: pages.
    """

    def __init__(
        self,
        agent: Agent,
        arena: memoryview,
        covers: Callable[[int, int], bool],
        operation: str,
        *,
        direct: bool,
        after: AtJob,
    ) -> None:
        self._agent, self._arena, self._covers, self._operation = agent, arena, covers, operation
        self._direct, self._after = direct, after
        self._writing = operation == "WRITE"
        self._used = 0
        """Bytes of the arena that transfers under way have."""
        self._going: deque[_Going] = deque()
        self.by_nixl = self.by_system_calls = self.bounced = 0

    def move(self, jobs: Iterable[Job]) -> None:
        """Move all of them. They are asked for a few at a time: whoever gives them may open their files then."""
        with self._agent.lock:
            try:
                for group in _groups(jobs):
                    while sum(len(going.jobs) for going in self._going) + len(group) > FILES:
                        self._finish(self._going.popleft())
                    self._prepare(group)
                    while self._going and self._has_ended(self._going[0]):
                        self._finish(self._going.popleft())
            finally:  # what is under way is waited for, whatever happens: its memory is lent
                self._drain()

    def _drain(self) -> None:
        """Wait for all that is under way. What one of them raises is raised when the last has ended."""
        first: BaseException | None = None
        while self._going:
            try:
                self._finish(self._going.popleft())
            except BaseException as error:  # noqa: BLE001 - raised below
                first = first or error
        self._used = 0
        if first is not None:
            raise first

    def _prepare(self, jobs: Sequence[Job]) -> None:
        """Find out which pages go straight, make room for the others, and begin."""
        self._look_at(jobs)
        need = sum(padded(job.nbytes) for job in jobs if not job.straight)
        if need > self._arena.nbytes and len(jobs) > 1:
            for job in jobs:
                self._prepare([job])
            return
        if need > self._arena.nbytes - self._used:
            self._drain()
        self._begin(_Going(jobs))

    def _look_at(self, jobs: Sequence[Job]) -> None:
        """Where the parts of each lie, and whether they go straight."""
        covers, unit = self._covers, DIRECT_ALIGNMENT if self._direct else 1
        for job in jobs:
            job.parts = [(address_of(buffer), len(buffer)) for buffer in job.page if len(buffer)]
            job.straight = all(at % unit == size % unit == 0 and covers(at, size) for at, size in job.parts)

    def _begin(self, going: _Going) -> None:
        local: list[tuple[int, int, int]] = []
        remote: list[tuple[int, int, int]] = []
        try:
            for job in going.jobs:
                at, fd = 0, job.fd
                for address, nbytes in job.parts if job.straight else self._bounced(job, going):
                    local.append((address, nbytes, 0))
                    remote.append((at, nbytes, fd))
                    at += nbytes
            if local:
                going.lent = self._agent.lend(
                    "FILE", [(0, job.nbytes, job.fd, "") for job in going.jobs if job.nbytes]
                )
                ends = np.array((local, remote), np.uint64)
                going.transfer = self._agent.begin(self._operation, ends[0], "FILE", ends[1])
        except OSError:
            self._settle(going, failed=True)
        except BaseException:
            self._take_back(going)
            raise
        else:
            self._going.append(going)

    def _bounced(self, job: Job, going: _Going) -> list[Extent]:
        """Its place in the arena, filled where it is to be written. Raises NixlError where it has none."""
        if padded(job.nbytes) > self._arena.nbytes - self._used:
            raise NixlError(f"a page of {job.nbytes:,} bytes is larger than bounce_size allows")
        place = self._arena[self._used : self._used + job.nbytes]
        self._used += padded(job.nbytes)
        going.bounced.append((job, place))
        if self._writing:
            copy_page([place], job.page)
        return [(address_of(place), job.nbytes)] if job.nbytes else []

    def _has_ended(self, going: _Going) -> bool:
        try:
            return going.transfer is None or going.transfer.ended()
        except NixlError:
            return True  # `wait` says it once more

    def _finish(self, going: _Going) -> None:
        failed = False
        try:
            if going.transfer is not None:
                going.transfer.wait()
        except NixlError:
            failed = True
        except BaseException:
            self._take_back(going)
            raise
        self._settle(going, failed=failed)

    def _take_back(self, going: _Going) -> None:
        lent, going.lent = going.lent, None
        if lent is not None:
            self._agent.take_back(lent)

    def _settle(self, going: _Going, *, failed: bool) -> None:
        """A transfer gives its pages up together; alone, by system calls, each has a cause of its own or none."""
        self._take_back(going)
        if failed:
            for job in going.jobs:
                self._by_system_call(job)
        else:
            if not self._writing:
                for job, place in going.bounced:
                    copy_page(job.page, [place])
            self.by_nixl += len(going.jobs)
            self.bounced += len(going.bounced)
        for job in going.jobs:
            self._after(job)

    def _by_system_call(self, job: Job) -> None:
        write, read = (write_page_direct, read_page_direct) if self._direct else (write_page, read_page)
        try:
            if self._writing:
                os.ftruncate(job.fd, 0)
                write(job.fd, job.page, job.nbytes)
            elif read(job.fd, job.page, job.nbytes) != job.nbytes:
                raise CutShort(f"the file ends before {job.nbytes:,} bytes")
        except OSError as error:
            job.error = error
        self.by_system_calls += 1


def _groups(jobs: Iterable[Job]) -> Iterator[list[Job]]:
    """Neighbours, together as large as a transfer should be."""
    group: list[Job] = []
    nbytes = 0
    for job in jobs:
        group.append(job)
        nbytes += job.nbytes
        if nbytes >= TRANSFER_BYTES or len(group) == FILES:
            yield group
            group, nbytes = [], 0
    if group:
        yield group
