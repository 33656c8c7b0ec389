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

from hicache_file.options import DIRECT_ALIGNMENT
from hicache_file.pageio import page_nbytes, read_page, read_page_direct, write_page, write_page_direct
from hicache_file.publish import Batch, Publisher, Wanted
from hicache_file.retrieve import Reader
from hicache_file.store import Store

from hicache_core.storage.lent_memory import address_of
from hicache_core.types import IoContext, Outcome, Page
from hicache_nixl.agents import Agents
from hicache_nixl.transfers import SMALL_PART, AtPage, CutShort, Job, Run, at_no_page, padded

FILES = 128
"""Files open at once in one call."""
PARTS = 2048
"""Parts of the pages that are lent to an agent at once."""


class Mover:
    """Moves jobs by NIXL. arenas: one registered stretch of memory per agent. Thread-safe."""

    def __init__(self, agents: Agents, arenas: dict[str, memoryview], *, direct: bool) -> None:
        self._agents, self._arenas, self._direct = agents, arenas, direct
        self.by_nixl = self.by_system_calls = self.bounced = 0
        """Pages. Counted without a lock: close enough for people."""

    def write(self, jobs: Sequence[Job], deadline: float | None, seal: AtPage) -> bool:
        """Move each to its file; its `error` is set where that failed. False where no agent was free in time.

        seal: told of each page before it is read.
        """
        return self._move(jobs, deadline, "WRITE", before=seal)

    def read(self, jobs: Sequence[Job], deadline: float | None, verify: AtPage) -> bool:
        """Move each from its file, as `write`. verify: told of each page that is in place."""
        return self._move(jobs, deadline, "READ", after=verify)

    def _move(
        self,
        jobs: Sequence[Job],
        deadline: float | None,
        operation: str,
        before: AtPage = at_no_page,
        after: AtPage = at_no_page,
    ) -> bool:
        with self._agents.one(deadline) as agent:
            if agent is None:
                return False
            for some in self._runs(jobs):
                run = Run(agent, self._arenas[agent.name], operation, before, after, self._direct)
                for job in run.move(some):
                    self._by_system_call(job, writing=operation == "WRITE", before=before, after=after)
                self.by_nixl += run.moved
                self.bounced += run.bounced
        return True

    def _runs(self, jobs: Sequence[Job]) -> list[list[Job]]:
        """Jobs whose parts, and whose bytes that must go through an arena, fit what is lent at once."""
        room = min((arena.nbytes for arena in self._arenas.values()), default=0)
        runs: list[list[Job]] = []
        parts = used = 0
        self._look_at(jobs)
        for job in jobs:
            need = 0 if job.straight else padded(job.nbytes)
            count = len(job.parts)
            if not runs or parts + count > PARTS or used + need > room:
                runs.append([])
                parts = used = 0
            runs[-1].append(job)
            parts, used = parts + count, used + need
        return runs

    def _look_at(self, jobs: Sequence[Job]) -> None:
        """Where the parts of each lie, and whether they go straight: mostly all lie in one registered stretch."""
        covers = self._agents.memory.covers
        for job in jobs:
            job.parts = [(address_of(buffer), len(buffer), buffer) for buffer in job.page if len(buffer)]
        if self._direct:
            for job in jobs:
                job.straight = all(
                    at % DIRECT_ALIGNMENT == size % DIRECT_ALIGNMENT == 0 and covers(at, size)
                    for at, size, _ in job.parts
                )
            return
        large = [(at, at + size) for job in jobs for at, size, _ in job.parts if size >= SMALL_PART]
        start, end = min((at for at, _ in large), default=0), max((end for _, end in large), default=0)
        if large and not covers(start, end - start):
            for job in jobs:
                job.straight = all(size < SMALL_PART or covers(at, size) for at, size, _ in job.parts)

    def _by_system_call(self, job: Job, *, writing: bool, before: AtPage, after: AtPage) -> None:
        write, read = (write_page_direct, read_page_direct) if self._direct else (write_page, read_page)
        try:
            before(job.position)
            if writing:
                os.ftruncate(job.fd, 0)
                write(job.fd, job.page, job.nbytes)
            elif read(job.fd, job.page, job.nbytes) != job.nbytes:
                raise CutShort(f"the file ends before {job.nbytes:,} bytes")
            after(job.position)
        except OSError as error:
            job.error = error
        self.by_system_calls += 1


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
            jobs = [job for _, _, job in begun]
            moved = not begun or self._mover.write(jobs, batch.deadline, batch.seal_page)
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
        begun.append((one, name, Job(one.position, fd, one.page, one.nbytes)))
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

    def read(self, keys: Sequence[str], pages: Sequence[Page], ctx: IoContext) -> list[Outcome]:
        """See Reader."""
        paths = list(self._store.directory.find_each(keys))
        outcomes = [Outcome.TIMEOUT] * len(keys)
        for start in range(0, len(keys), FILES):
            self._read_some(range(start, min(start + FILES, len(keys))), paths, pages, outcomes, ctx)
        return outcomes

    def _read_some(
        self,
        some: range,
        paths: Sequence[str | None],
        pages: Sequence[Page],
        outcomes: list[Outcome],
        ctx: IoContext,
    ) -> None:
        """The pages at these positions; their outcomes are filled in."""
        opened: list[tuple[Job, int]] = []
        deadline, now_ns = ctx.deadline, time.time_ns()
        try:
            for index in some:
                path, page = paths[index], pages[index]
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
                opened.append((Job(index, fd, page, nbytes), status.st_mtime_ns))
                if self._direct and nbytes % DIRECT_ALIGNMENT:
                    _without_direct(fd)
            if opened and self._mover.read([job for job, _ in opened], deadline, ctx.verify_page):
                self._settle(opened, outcomes, now_ns)
        finally:
            for job, _ in opened:
                os.close(job.fd)

    def _settle(self, opened: Sequence[tuple[Job, int]], outcomes: list[Outcome], now_ns: int) -> None:
        moved = 0
        for job, mtime_ns in opened:
            if job.error is None:
                outcomes[job.position] = Outcome.HIT
                moved += job.nbytes
                self._store.note_use(job.fd, mtime_ns, now_ns)
            else:
                cut = isinstance(job.error, CutShort)
                outcomes[job.position] = Outcome.CORRUPT if cut else self.told(job.error)
        self._store.counters.add(bytes_read=moved)


def _without_direct(fd: int) -> None:
    """A page whose length is not a multiple of the alignment goes through the page cache."""
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) & ~os.O_DIRECT)
