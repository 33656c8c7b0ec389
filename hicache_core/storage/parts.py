"""What an open session consists of."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from hicache_core.clock import Clock
from hicache_core.errors import MisuseError
from hicache_core.keys import KeySchema
from hicache_core.namespace import Identity
from hicache_core.pools.host import HostPool
from hicache_core.storage.batches import PageBatch, as_pages
from hicache_core.storage.guard import Guard
from hicache_core.storage.ledger import StorageLedger
from hicache_core.storage.queries import Query
from hicache_core.storage.reading import Reader
from hicache_core.storage.seals import SealRing
from hicache_core.storage.settings import SessionSettings, SessionStatus
from hicache_core.storage.staging import Staging
from hicache_core.storage.workers import DeadlineKeeper, WorkerGroup
from hicache_core.storage.writing import Writer
from hicache_core.types import HostPoolView, Page, PoolName, Slots


@dataclass(slots=True)
class Parts:
    """The parts of one session, wired by `open_session`."""

    name: str
    identity: Identity
    schema: KeySchema
    settings: SessionSettings
    clock: Clock
    ledger: StorageLedger
    guard: Guard
    query: Query
    reader: Reader
    writer: Writer
    read_group: WorkerGroup
    write_group: WorkerGroup
    admin_group: WorkerGroup
    keeper: DeadlineKeeper
    rings: Sequence[SealRing]
    stagings: Sequence[Staging]
    pools: dict[PoolName, HostPoolView] = field(default_factory=dict)
    closed: bool = False
    pid: int = field(default_factory=os.getpid)

    @property
    def groups(self) -> tuple[WorkerGroup, WorkerGroup, WorkerGroup]:
        """Read, write, admin."""
        return self.read_group, self.write_group, self.admin_group

    def check_process(self) -> None:
        """Raises MisuseError in a process that inherited the session by fork."""
        if os.getpid() != self.pid:
            raise MisuseError(
                f"the storage session {self.name!r} was opened by process {self.pid}; a forked process opens its own"
            )

    def check_open(self) -> None:
        """Raises MisuseError after close, and in a forked process."""
        self.check_process()
        if self.closed:
            raise MisuseError(f"the storage session {self.name!r} is closed")

    def deadline(self, timeout: float | None) -> float:
        """When an operation that begins now is given up. None: after the session's own timeout.

        Raises MisuseError for what is no number: a deadline that compares with nothing would never come.
        """
        seconds = self.settings.timeout if timeout is None else timeout
        if math.isnan(seconds):
            raise MisuseError(f"a timeout is a number of seconds, got {seconds}; None is the session's own")
        return self.clock() + seconds

    def pool_batch(self, name: PoolName, hashes: Sequence[str], slots: Slots) -> PageBatch:
        """Pages of a registered pool. Raises MisuseError for an unknown pool, or unequal lengths."""
        view = self.pools.get(name)
        if view is None:
            known = ", ".join(map(str, self.pools)) or "none"
            raise MisuseError(f"host pool {name} is not registered with this session; registered: {known}")
        where = np.array(slots, np.int64)  # our own: the caller may use the array again, a store may sort it
        if where.ndim != 1 or len(where) != len(hashes):
            raise MisuseError(f"{len(hashes)} hashes, but slots of shape {where.shape}")
        pages: Sequence[Page] = view.pages(where)
        if isinstance(view, HostPool):  # our own: byte buffers of one shape, nothing to look at
            sizes = [view.page_nbytes] * len(pages)
        else:
            pages, sizes = as_pages(pages, len(hashes), writable=False)
        return PageBatch(self.schema.physical(hashes, name.value), pages, sizes, where, owner=view.owner)

    def status(self) -> SessionStatus:
        """A snapshot."""
        breakers = {str(group.direction): group.breaker.status() for group in self.groups}
        damage = self.guard.damage.status()
        problems = [
            f"{direction}: breaker {breaker.state}: {breaker.reason}"
            for direction, breaker in breakers.items()
            if breaker.state != "closed"
        ]
        if damage.refused and not any(breaker.reason == damage.refused for breaker in breakers.values()):
            problems.append(damage.refused)
        held = {direction: breaker.abandoned_now for direction, breaker in breakers.items() if breaker.abandoned_now}
        problems += [f"{direction}: {count} abandoned calls have not returned" for direction, count in held.items()]
        return SessionStatus(
            backend=self.name,
            namespace=self.schema.namespace,
            closed=self.closed,
            healthy=not self.closed and not problems,
            breakers=breakers,
            running={str(group.direction): group.running for group in self.groups},
            threads=sum(len(group.threads) for group in self.groups),
            damage=damage,
            staged_bytes=sum(staging.nbytes for staging in self.stagings),
            capabilities=self.guard.capabilities,
            recent_errors=self.ledger.recent_errors,
            problems=problems,
        )
