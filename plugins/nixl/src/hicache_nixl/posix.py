"""Plugin POSIX: hicache-file's directories, their bytes moved by NIXL a batch at a time.

Files are found, published, evicted and swept by hicache-file; a root may be used by both backends at once. What NIXL
gives up is tried once more page by page with plain system calls: a bad page then has a cause of its own (no space, a
file cut short), and fails none of its neighbours.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from hicache_file.options import DIRECT_ALIGNMENT
from hicache_file.pageio import page_nbytes, read_page, read_page_direct, write_page, write_page_direct
from hicache_file.publish import Batch, Publisher, Wanted
from hicache_file.retrieve import Reader
from hicache_file.store import Store

from hicache_core.storage.lent_memory import address_of
from hicache_core.storage.staging import copy_page
from hicache_core.types import Outcome, Page
from hicache_nixl.agents import Agent, Agents, NixlError

FILES = 128
"""Files open at once in one call."""
PARTS = 2048
"""Descriptors in one transfer."""


@dataclass(slots=True)
class Job:
    """A page and the open file that it goes to or comes from. error: why it did not."""

    fd: int
    page: Page
    nbytes: int
    error: OSError | None = None
    parts: list[tuple[int, int]] = field(default_factory=list)
    """Address and bytes of each buffer that has any; filled in by the mover."""
    straight: bool = True
    """All of them are registered, and aligned where that counts."""


class Mover:
    """Moves jobs by NIXL. arenas: one registered stretch of memory per agent. Thread-safe."""

    def __init__(self, agents: Agents, arenas: dict[str, memoryview], *, direct: bool) -> None:
        self._agents, self._arenas, self._direct = agents, arenas, direct
        self.by_nixl = self.by_system_calls = self.bounced = 0
        """Pages. Counted without a lock: close enough for people."""

    def move(self, jobs: Sequence[Job], deadline: float | None, *, writing: bool) -> bool:
        """Move each; its `error` is set where that failed. False where no agent was free before the deadline."""
        with self._agents.one(deadline) as agent:
            if agent is None:
                return False
            for some in self._transfers(jobs):
                try:
                    self._by_nixl(agent, some, writing=writing)
                    self.by_nixl += len(some)
                except NixlError:
                    self._by_system_calls(some, writing=writing)
        return True

    def _transfers(self, jobs: Sequence[Job]) -> list[list[Job]]:
        """Runs of jobs whose parts, and whose bytes that must go through an arena, fit one transfer."""
        room = min((arena.nbytes for arena in self._arenas.values()), default=0)
        runs: list[list[Job]] = []
        parts = used = 0
        for job in jobs:
            self._look_at(job)
            need = 0 if job.straight else -(-job.nbytes // DIRECT_ALIGNMENT) * DIRECT_ALIGNMENT
            count = len(job.parts)
            if not runs or parts + count > PARTS or used + need > room:
                runs.append([])
                parts = used = 0
            runs[-1].append(job)
            parts, used = parts + count, used + need
        return runs

    def _look_at(self, job: Job) -> None:
        covers = self._agents.memory.covers
        job.parts = [(address_of(buffer), len(buffer)) for buffer in job.page if len(buffer)]
        job.straight = all(covers(address, nbytes) for address, nbytes in job.parts)
        if self._direct and job.straight:
            job.straight = not any(address % DIRECT_ALIGNMENT or n % DIRECT_ALIGNMENT for address, n in job.parts)

    def _by_nixl(self, agent: Agent, jobs: Sequence[Job], *, writing: bool) -> None:
        """One transfer. Raises NixlError."""
        arena, used = self._arenas[agent.name], 0
        local: list[tuple[int, int, int]] = []
        remote: list[tuple[int, int, int]] = []
        bounced: list[tuple[Job, memoryview]] = []
        for job in jobs:
            parts = job.parts
            if not job.straight:
                padded = -(-job.nbytes // DIRECT_ALIGNMENT) * DIRECT_ALIGNMENT
                if padded > arena.nbytes - used:
                    raise NixlError(f"a page of {job.nbytes:,} bytes is larger than bounce_size allows")
                place = arena[used : used + job.nbytes]
                used += padded
                bounced.append((job, place))
                if writing:
                    copy_page([place], job.page)
                parts = [(address_of(place), job.nbytes)] if job.nbytes else []
            at, fd = 0, job.fd
            for address, nbytes in parts:
                local.append((address, nbytes, 0))
                remote.append((at, nbytes, fd))
                at += nbytes
        if local:
            targets = [(0, job.nbytes, job.fd, "") for job in jobs if job.nbytes]
            agent.move(
                "WRITE" if writing else "READ",
                np.array(local, np.uint64),
                "FILE",
                targets,
                np.array(remote, np.uint64),
            )
        if not writing:
            for job, place in bounced:
                copy_page(job.page, [place])
        self.bounced += len(bounced)

    def _by_system_calls(self, jobs: Sequence[Job], *, writing: bool) -> None:
        write, read = (write_page_direct, read_page_direct) if self._direct else (write_page, read_page)
        for job in jobs:
            try:
                if writing:
                    os.ftruncate(job.fd, 0)
                    write(job.fd, job.page, job.nbytes)
                elif read(job.fd, job.page, job.nbytes) != job.nbytes:
                    job.error = CutShort(f"the file ends before {job.nbytes:,} bytes")
                self.by_system_calls += 1
            except OSError as error:
                job.error = error


class CutShort(OSError):
    """A file that was shorter than when it was opened."""


class NixlPublisher(Publisher):
    """hicache-file's publisher, which fills the temporaries of a batch together."""

    def __init__(self, store: Store, mover: Mover) -> None:
        super().__init__(store)
        self._mover, self._direct = mover, store.options.direct

    def _write_each(self, wanted: Sequence[Wanted], batch: Batch, outcomes: list[Outcome]) -> None:
        for start in range(0, len(wanted), FILES):
            self._write_some(wanted[start : start + FILES], batch, outcomes)

    def _write_some(self, wanted: Sequence[Wanted], batch: Batch, outcomes: list[Outcome]) -> None:
        begun: list[tuple[Wanted, str, Job]] = []
        try:
            for one in wanted:
                refused = self.refusal(batch)
                if refused is None:
                    refused = self.told(batch, lambda batch, one=one: self._begin(one, begun))
                if refused is not Outcome.STORED:
                    outcomes[one.position] = refused
            moved = not begun or self._mover.move([job for _, _, job in begun], batch.deadline, writing=True)
            while begun:
                one, name, job = begun.pop(0)
                if not moved:
                    self.give_up(name, job.fd)
                    outcomes[one.position] = Outcome.TIMEOUT
                else:
                    outcomes[one.position] = self.told(batch, self._end, one, name, job)
        finally:
            for _, name, job in begun:
                self.give_up(name, job.fd)

    def _begin(self, one: Wanted, begun: list[tuple[Wanted, str, Job]]) -> Outcome:
        name, fd = self._store.writer.temporary()
        if self._direct and one.nbytes % DIRECT_ALIGNMENT:
            _without_direct(fd)
        begun.append((one, name, Job(fd, one.page, one.nbytes)))
        return Outcome.STORED

    def _end(self, one: Wanted, name: str, job: Job, batch: Batch) -> Outcome:
        if job.error is not None:
            self.give_up(name, job.fd)
            raise job.error
        return self.finish(one, name, job.fd, batch)


class NixlReader(Reader):
    """hicache-file's reader, which fills the pages of a batch together."""

    def __init__(self, store: Store, mover: Mover) -> None:
        super().__init__(store)
        self._mover, self._direct = mover, store.options.direct

    def read(self, keys: Sequence[str], pages: Sequence[Page], deadline: float | None) -> list[Outcome]:
        """See Reader."""
        paths = list(self._store.directory.find_each(keys))
        outcomes: list[Outcome] = []
        for start in range(0, len(keys), FILES):
            outcomes += self._read_some(paths[start : start + FILES], pages[start : start + FILES], deadline)
        return outcomes

    def _read_some(self, paths: Sequence[str | None], pages: Sequence[Page], deadline: float | None) -> list[Outcome]:
        outcomes = [Outcome.TIMEOUT] * len(paths)
        opened: list[tuple[int, Job, int]] = []
        now_ns = time.time_ns()
        try:
            for index, (path, page) in enumerate(zip(paths, pages, strict=True)):
                if deadline is not None and time.monotonic() > deadline:
                    break
                nbytes = page_nbytes(page)
                try:
                    found = self.open_page(path, nbytes)
                except OSError as error:
                    outcomes[index] = self.told(error)
                    continue
                if isinstance(found, Outcome):
                    outcomes[index] = found
                    continue
                fd, status = found
                opened.append((index, Job(fd, page, nbytes), status.st_mtime_ns))
                if self._direct and nbytes % DIRECT_ALIGNMENT:
                    _without_direct(fd)
            if opened and self._mover.move([job for _, job, _ in opened], deadline, writing=False):
                self._settle(opened, outcomes, now_ns)
        finally:
            for _, job, _ in opened:
                os.close(job.fd)
        return outcomes

    def _settle(self, opened: Sequence[tuple[int, Job, int]], outcomes: list[Outcome], now_ns: int) -> None:
        moved = 0
        for index, job, mtime_ns in opened:
            if job.error is None:
                outcomes[index] = Outcome.HIT
                moved += job.nbytes
                self._store.note_use(job.fd, mtime_ns, now_ns)
            else:
                outcomes[index] = Outcome.CORRUPT if isinstance(job.error, CutShort) else self.told(job.error)
        self._store.counters.add(bytes_read=moved)


def _without_direct(fd: int) -> None:
    """A page whose length is not a multiple of the alignment goes through the page cache."""
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) & ~os.O_DIRECT)
