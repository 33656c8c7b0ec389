"""Pages between registered memory and open files: a run of transfers, each of a few pages.

A transfer is as large as a core's cache bears: its pages are sealed just before it and judged just after it. It is
begun before the one before it has ended, so an engine that works beside us is never idle; one that does its work
when it is asked (io_uring on cached pages) has ended at once, and its pages are judged at once.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from hicache_file.options import DIRECT_ALIGNMENT

from hicache_core.storage.lent_memory import address_of
from hicache_core.storage.staging import copy_page
from hicache_core.types import Page
from hicache_nixl.agents import Agent, NixlError, Transfer

TRANSFER_BYTES = 1 << 20
"""A transfer has no further page once it has so many bytes."""
SMALL_PART = 4096
"""A part below it (a seal) is moved by a system call: an engine's round for it takes longer than the bytes do."""

AtPage: TypeAlias = "Callable[[int], None]"
"""Told of the position of a page in its batch."""


Part: TypeAlias = "tuple[int, int, memoryview]"
"""Address, bytes, buffer."""


def at_no_page(position: int) -> None:
    """Nobody wants to know."""


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
    parts: list[Part] = field(default_factory=list)
    """Of each buffer that has any bytes; filled in by the mover."""
    straight: bool = True
    """All that NIXL is to move are registered, and aligned where that counts."""


@dataclass(slots=True)
class _Going:
    """A transfer under way (None: it needs none), its pages, and where those lie that do not go straight."""

    jobs: Sequence[Job]
    transfer: Transfer | None
    bounced: list[tuple[Job, memoryview]]


class Run:
    """Jobs that are lent to one agent together. moved, bounced: pages so far."""

    def __init__(
        self, agent: Agent, arena: memoryview, operation: str, before: AtPage, after: AtPage, direct: bool
    ) -> None:
        self._agent, self._arena, self._operation = agent, arena, operation
        self._before, self._after, self._direct = before, after, direct
        self._writing = operation == "WRITE"
        self._used = self.moved = self.bounced = 0
        self._failed: list[Job] = []
        self._going: deque[_Going] = deque()

    def move(self, jobs: Sequence[Job]) -> list[Job]:
        """Move all of them; those that NIXL gave up."""
        targets = [(0, job.nbytes, job.fd, "") for job in jobs if job.nbytes]
        if not targets:
            for job in jobs:
                self._before(job.position)
                self._after(job.position)
            return []
        try:
            with self._agent.lent("FILE", targets):
                try:
                    for group in _groups(jobs):
                        self._begin(group)
                        while self._going and self._ended(self._going[0]):
                            self._going.popleft()
                finally:  # what is under way is waited for, whatever happens: its memory is lent
                    while self._going:
                        self._finish(self._going.popleft())
        except NixlError:  # not even registered
            return list(jobs)
        return self._failed

    def _begin(self, jobs: Sequence[Job]) -> None:
        local: list[tuple[int, int, int]] = []
        remote: list[tuple[int, int, int]] = []
        going = _Going(jobs, None, [])
        try:
            for job in jobs:
                self._before(job.position)
                parts = job.parts if job.straight else self._bounced(job, going)
                at, fd = 0, job.fd
                for address, nbytes, buffer in parts:
                    if nbytes < SMALL_PART and job.straight and not self._direct:
                        self._small(fd, buffer, at)
                    else:
                        local.append((address, nbytes, 0))
                        remote.append((at, nbytes, fd))
                    at += nbytes
            if local:
                parts_of = np.array((local, remote), np.uint64)
                going.transfer = self._agent.begin(self._operation, parts_of[0], "FILE", parts_of[1])
        except OSError:
            self._failed += jobs
        else:
            self._going.append(going)

    def _bounced(self, job: Job, going: _Going) -> list[Part]:
        """Its place in the arena, filled where it is to be written. Raises NixlError where it has none."""
        if padded(job.nbytes) > self._arena.nbytes - self._used:
            raise NixlError(f"a page of {job.nbytes:,} bytes is larger than bounce_size allows")
        place = self._arena[self._used : self._used + job.nbytes]
        self._used += padded(job.nbytes)
        going.bounced.append((job, place))
        if self._writing:
            copy_page([place], job.page)
        return [(address_of(place), job.nbytes, place)] if job.nbytes else []

    def _small(self, fd: int, buffer: memoryview, at: int) -> None:
        done = os.pwrite(fd, buffer, at) if self._writing else os.preadv(fd, [buffer], at)
        if done != len(buffer):
            raise NixlError(f"only {done} of {len(buffer)} bytes were moved")

    def _ended(self, going: _Going) -> bool:
        """Whether it has ended, well or not; what comes after is done then."""
        try:
            if going.transfer is not None and not going.transfer.ended():
                return False
            self._done(going)
        except NixlError:
            self._failed += going.jobs
        return True

    def _finish(self, going: _Going) -> None:
        try:
            if going.transfer is not None:
                going.transfer.wait()
            self._done(going)
        except NixlError:
            self._failed += going.jobs

    def _done(self, going: _Going) -> None:
        if not self._writing:
            for job, place in going.bounced:
                copy_page(job.page, [place])
        for job in going.jobs:
            self._after(job.position)
        self.moved += len(going.jobs)
        self.bounced += len(going.bounced)


def _groups(jobs: Sequence[Job]) -> Iterator[Sequence[Job]]:
    """Neighbours, together as large as a transfer should be."""
    group: list[Job] = []
    nbytes = 0
    for job in jobs:
        group.append(job)
        nbytes += job.nbytes
        if nbytes >= TRANSFER_BYTES:
            yield group
            group, nbytes = [], 0
    if group:
        yield group
