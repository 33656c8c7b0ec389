"""Plugin POSIX: hicache-file's directories, their bytes moved by NIXL.

Files are found, published, evicted and swept by hicache-file; a root may be used by both backends at once. What NIXL
gives up is tried once more page by page with plain system calls: a bad page then has a cause of its own (no space, a
file cut short), and fails none of its neighbours.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterable, Iterator, Sequence

from hicache_file.options import DIRECT_ALIGNMENT
from hicache_file.pageio import page_nbytes
from hicache_file.publish import Batch, Publisher, Wanted
from hicache_file.retrieve import Reader
from hicache_file.store import Store

from hicache_core.types import IoContext, Outcome, Page
from hicache_nixl.agents import Agents
from hicache_nixl.transfers import AtJob, CutShort, Job, Run


class Mover:
    """Moves jobs by NIXL. arenas: one registered stretch of memory per agent. Thread-safe."""

    def __init__(self, agents: Agents, arenas: dict[str, memoryview], *, direct: bool) -> None:
        self._agents, self._arenas, self._direct = agents, arenas, direct
        self.by_nixl = self.by_system_calls = self.bounced = 0
        """Pages. Counted without a lock: close enough for people."""

    def move(self, operation: str, jobs: Iterable[Job], deadline: float | None, after: AtJob) -> bool:
        """Move each to its file (WRITE) or from it (READ). False, no job asked for: no agent was free in time.

        after: told of each once it has ended; its `error` says whether well.
        """
        with self._agents.one(deadline) as agent:
            if agent is None:
                return False
            arena, covers = self._arenas[agent.name], self._agents.memory.covers
            run = Run(agent, arena, covers, operation, direct=self._direct, after=after)
            try:
                run.move(jobs)
            finally:
                self.by_nixl += run.by_nixl
                self.by_system_calls += run.by_system_calls
                self.bounced += run.bounced
        return True


class NixlPublisher(Publisher):
    """hicache-file's publisher, which fills temporaries by NIXL."""

    def __init__(self, store: Store, mover: Mover) -> None:
        super().__init__(store)
        self._mover, self._direct = mover, store.options.direct

    def _write_each(self, wanted: Sequence[Wanted], batch: Batch, outcomes: list[Outcome]) -> None:
        begun: dict[int, tuple[Wanted, str, Job]] = {}

        def jobs() -> Iterator[Job]:
            for one in wanted:
                answer = self.refusal(batch)
                if answer is None:
                    answer = self.told(batch, self._begin, one, begun)
                if one.position in begun:
                    yield begun[one.position][2]
                else:
                    outcomes[one.position] = answer

        def ended(job: Job) -> None:
            one, name, _ = begun.pop(job.position)
            outcomes[one.position] = self.told(batch, self._end, one, name, job)

        try:
            if not self._mover.move("WRITE", jobs(), batch.deadline, ended):
                for one in wanted:
                    outcomes[one.position] = Outcome.TIMEOUT
        finally:
            for _, name, job in begun.values():
                self.give_up(name, job.fd)

    def _begin(self, one: Wanted, begun: dict[int, tuple[Wanted, str, Job]], batch: Batch) -> Outcome:
        name, fd = self._store.writer.temporary()
        begun[one.position] = one, name, Job(one.position, fd, one.page, one.nbytes)
        if self._direct and one.nbytes % DIRECT_ALIGNMENT:
            _without_direct(fd)
        return Outcome.STORED

    def _end(self, one: Wanted, name: str, job: Job, batch: Batch) -> Outcome:
        if job.error is not None:
            self.give_up(name, job.fd)
            raise job.error
        return self.finish(one, name, job.fd, batch)


class NixlReader(Reader):
    """hicache-file's reader, which fills pages by NIXL."""

    def __init__(self, store: Store, mover: Mover) -> None:
        super().__init__(store)
        self._mover, self._direct = mover, store.options.direct

    def read(self, keys: Sequence[str], pages: Sequence[Page], ctx: IoContext) -> list[Outcome]:
        """See Reader."""
        paths = self._store.directory.find_each(keys)
        outcomes = [Outcome.TIMEOUT] * len(keys)
        opened: dict[int, tuple[int, int]] = {}  # position → descriptor, mtime in ns
        now_ns, moved = time.time_ns(), 0

        def jobs() -> Iterator[Job]:
            for index, (path, page) in enumerate(zip(paths, pages, strict=True)):
                if ctx.deadline is not None and time.monotonic() > ctx.deadline:
                    return
                nbytes = page_nbytes(page)
                found = self._opened(path, nbytes)
                if isinstance(found, Outcome):
                    outcomes[index] = found
                    continue
                opened[index] = found
                yield Job(index, found[0], page, nbytes)

        def ended(job: Job) -> None:
            nonlocal moved
            fd, mtime_ns = opened.pop(job.position)
            try:
                if job.error is None:
                    outcomes[job.position] = Outcome.HIT
                    moved += job.nbytes
                    self._store.note_use(fd, mtime_ns, now_ns)
                else:
                    cut = isinstance(job.error, CutShort)
                    outcomes[job.position] = Outcome.CORRUPT if cut else self.told(job.error)
            finally:
                os.close(fd)

        try:
            self._mover.move("READ", jobs(), ctx.deadline, ended)
        finally:
            for fd, _ in opened.values():
                os.close(fd)
            self._store.counters.add(bytes_read=moved)
        return outcomes

    def _opened(self, path: str | None, nbytes: int) -> tuple[int, int] | Outcome:
        """Descriptor and mtime in ns of a page's file, or why there is none to read."""
        try:
            found = self.open_page(path, nbytes)
        except OSError as error:
            return self.told(error)
        if isinstance(found, Outcome):
            return found
        fd, status = found
        if self._direct and nbytes % DIRECT_ALIGNMENT:
            _without_direct(fd)
        return fd, status.st_mtime_ns


def _without_direct(fd: int) -> None:
    """A page whose length is not a multiple of the alignment goes through the page cache."""
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) & ~os.O_DIRECT)
