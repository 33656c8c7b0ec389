"""L2 → L3: pages go in the order of their sequence, and what a store does not take is offered again.

A write covers a stretch of one path, from the first page that L3 lacks, so that no page is stored before those that
lead to it. Its nodes keep their L2 copies until no call can read them any more, also when the wait for it was given
up. What failed is marked, waits in a bounded queue without a lock, and may be evicted meanwhile; then it is counted
as given up.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from hicache_core.controller.dirty import Dirty, DirtyQueue
from hicache_core.controller.state import State
from hicache_core.errors import MisuseError
from hicache_core.tree.locking import HostLock
from hicache_core.tree.node import Node, StorageState
from hicache_core.types import BATCH_PAGES, Outcome, Slots

if TYPE_CHECKING:
    from hicache_core.storage.handles import Handle
    from hicache_core.storage.session import StorageSession

QUEUED_SHARE = 2
"""Writes may hold 1/QUEUED_SHARE of L2 at once; more waits without a lock."""

_REFUSED, _BLOCKED, _FAILED, _CLASSES = 0, 1, 2, 3

REFUSALS = frozenset({Outcome.REJECTED, Outcome.FOREIGN, Outcome.CORRUPT})
"""Answers that asking again at once would not change: no room; what is stored there is not ours, or not to be mended.
They are offered again when the pages are used again."""


class StoreOperation:
    """One stretch of a path on its way to L3, batch after batch. An `Operation`."""

    def __init__(self, path: BackupPath, nodes: list[Node], locks: list[HostLock], attempts: int) -> None:
        assert path.session is not None
        self.path, self.session = path, path.session
        self.end, self.locks, self.attempts = nodes[-1], locks, attempts
        tree = path.state.tree
        self.hashes = [page_hash for node in nodes for page_hash in tree.hashes(node)]
        self.slots: Slots = np.concatenate([node.host for node in nodes if node.host is not None])
        self.stored = 0
        self.handle: Handle[list[Outcome]] | None = None
        """The batch under way, or the last."""
        self._ended: int | None = None
        self._stopped = False
        self._between_batches = threading.Lock()

    def submit(self) -> None:
        """Send the next batch. Runs on the engine's thread first, then wherever a batch ends.

        A rank whose pages another rank writes sends nothing and claims all: the least claim of all ranks counts.
        """
        if not self.path.state.writes_storage:
            self.stored = len(self.hashes)
            self._end(_FAILED)
            return
        span = slice(self.stored, self.stored + BATCH_PAGES)
        with self._between_batches:
            if not self._stopped:
                try:
                    self.handle = self.session.submit_set_v1(self.hashes[span], self.slots[span])
                except MisuseError:  # the session was closed between two batches
                    self._stopped = True
        if self._stopped or self.handle is None:
            self._end(_FAILED)
        else:
            self.handle.add_done_callback(self._batch_done)

    def stop(self) -> None:
        """Send no further batch, and take the last one back if no worker has begun it."""
        with self._between_batches:
            self._stopped = True
        if self.handle is not None:
            self.handle.cancel()

    def poll(self) -> int:
        """-1 under way; then pages stored, and in the last base-3 digit why no more were."""
        return -1 if self._ended is None else self.stored * _CLASSES + self._ended

    def commit(self, agreed: int) -> None:
        """See Operation."""
        self.path.committed(self, *divmod(agreed, _CLASSES))

    def _batch_done(self, handle: Handle[list[Outcome]]) -> None:
        outcomes = handle.result()
        run = next((index for index, outcome in enumerate(outcomes) if not outcome), len(outcomes))
        self.stored += run
        if run < len(outcomes):
            refused = outcomes[run] in REFUSALS
            self._end(_REFUSED if refused else _BLOCKED if self.path.breaker_open() else _FAILED)
        elif self.stored == len(self.hashes):
            self._end(_FAILED)
        else:
            self.submit()

    def _end(self, why: int) -> None:
        self._ended = why
        self.path.state.mailbox.post(self)


class BackupPath:
    """Brings nodes to L3."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.dirty = DirtyQueue(state.config.write_retry_limit, state.clock)
        self.running: dict[int, StoreOperation] = {}
        self.queued_pages = 0
        self._after: list[tuple[Node, int, HostLock]] = []
        self._to_push: deque[Node] = deque()
        self._unreturned: dict[int, tuple[Handle[list[Outcome]], Slots]] = {}

    @property
    def session(self) -> StorageSession | None:
        """The L3 that is attached."""
        return self.state.session

    @property
    def idle(self) -> bool:
        """Nothing is on its way to L3 and nothing waits to be."""
        return not (self.running or self._after or self._to_push or len(self.dirty))

    @property
    def _most_queued(self) -> int:
        host = self.state.host_pool
        return 0 if host is None else host.capacity // QUEUED_SHARE

    def breaker_open(self) -> bool:
        """Whether L3 refuses writes for now."""
        session = self.state.session
        return session is not None and session.breakers["write"].blocked

    def offer(self, end: Node, attempts: int = 0) -> None:
        """Bring the path to `end` to L3, from the first page that it lacks."""
        state = self.state
        if state.session is None or end.removed:
            return
        path = state.tree.path(end)
        first = next((i for i, node in enumerate(path) if node.storage_state is not StorageState.STORED), len(path))
        nodes = path[first:]
        if any(node.storage_state is StorageState.QUEUED for node in nodes):
            self._after.append((end, attempts, state.tree.inc_host_lock(end)))
            return
        gap = next((index for index, node in enumerate(nodes) if node.host is None), len(nodes))
        nodes = nodes[:gap]
        if not nodes:
            return
        pages = sum(node.pages for node in nodes)
        if self.running and self.queued_pages + pages > self._most_queued:
            self._wait(nodes[-1], nodes, attempts, blocked=True)
            return
        self._send(nodes, attempts)

    def used(self, end: Node) -> None:
        """The path to `end` was used again: offer what of it is in L2 and was never offered, or was given up."""
        if self.state.session is None:
            return
        node: Node = end
        while node.parent is not None:
            if node.storage_state is StorageState.NONE and node.host is not None:
                self.offer(node)
                return
            node = node.parent

    def push_all(self) -> None:
        """Bring everything that is in L2 to L3, as its capacity allows."""
        for node in self.state.tree.walk():
            if node.host is not None and not any(child.host is not None for child in node.children.values()):
                self._to_push.append(node)
        self.tick()

    def tick(self) -> None:
        """Offer what is due."""
        state = self.state
        for entry in self.dirty.take_due(state.sync):
            if not entry.end.removed:
                state.counters.store_retries += 1
                self.offer(entry.end, entry.attempts)
        while self._to_push and self.queued_pages <= self._most_queued // 2:
            self.offer(self._to_push.popleft())

    def committed(self, operation: StoreOperation, stored: int, why: int) -> None:
        """A write has ended on all ranks after its first `stored` pages."""
        state = self.state
        del self.running[id(operation)]
        self.queued_pages -= len(operation.hashes)
        state.counters.stored += stored
        if state.unstored:
            for page_hash in operation.hashes[:stored]:
                state.unstored.pop(page_hash, None)
        failed, position = [], 0
        for node in [node for lock in operation.locks for node in lock.nodes if not lock.released]:
            position += node.pages
            node.storage_state = StorageState.STORED if position <= stored else StorageState.FAILED
            if position > stored:
                failed.append(node)
        self._unlock(operation)
        if failed and why == _REFUSED:
            self._give_up(Dirty(operation.end, sum(node.pages for node in failed), 0, 0.0))
        elif failed:
            blocked = why == _BLOCKED
            self._wait(operation.end, failed, operation.attempts + (not blocked), blocked=blocked)
        self._offer_waiting()

    def forget_all(self) -> None:
        """L3 is another, or none: stop offering. Calls under way keep their pages until they return."""
        state = self.state
        for operation in list(self.running.values()):
            state.mailbox.forget(operation)
            operation.stop()
            self._unlock(operation)
        for _, _, lock in self._after:
            if not lock.released:
                state.tree.dec_host_lock(lock)
        self.running.clear()
        self._after.clear()
        self._to_push.clear()
        self.dirty.clear()
        self.queued_pages = 0

    def take_lent(self) -> list[tuple[Handle[list[Outcome]], Slots]]:
        """Calls that may still read L2 pages, and which. Told once: from now on the caller frees these pages."""
        lent = list(self._unreturned.values())
        self._unreturned.clear()
        return lent

    # parts

    def _send(self, nodes: list[Node], attempts: int) -> None:
        state = self.state
        locks = [state.tree.inc_host_lock(node) for node in nodes]
        for node in nodes:
            node.storage_state = StorageState.QUEUED
        operation = StoreOperation(self, nodes, locks, attempts)
        state.negative.written(operation.hashes)
        self.running[id(operation)] = operation
        self.queued_pages += len(operation.hashes)
        state.mailbox.watch(operation)
        operation.submit()

    def _wait(self, end: Node, nodes: list[Node], attempts: int, *, blocked: bool) -> None:
        """Let these wait for another attempt."""
        for node in nodes:
            node.storage_state = StorageState.FAILED
        for entry in self.dirty.add(end, sum(node.pages for node in nodes), attempts, blocked=blocked):
            self._give_up(entry)

    def _give_up(self, entry: Dirty) -> None:
        """These pages will not be offered again unless they are used again."""
        state, left, node = self.state, entry.pages, entry.end
        while left > 0 and node.parent is not None:
            if node.storage_state is StorageState.FAILED:
                node.storage_state = StorageState.NONE
                state.will_not_store(state.tree.hashes(node))
                state.counters.store_given_up += node.pages
            left -= node.pages
            node = node.parent

    def _unlock(self, operation: StoreOperation) -> None:
        """Give the locks back, once the last call has left the pages alone (earlier ones have)."""
        state = self.state

        handle = operation.handle

        def unlock() -> None:
            self._unreturned.pop(id(operation), None)
            for lock in operation.locks:
                if not lock.released:
                    state.tree.dec_host_lock(lock)

        if handle is None or handle.returned.is_set():
            unlock()
        else:
            self._unreturned[id(operation)] = handle, operation.slots
            handle.add_returned_callback(lambda _: state.mailbox.call(unlock))

    def _offer_waiting(self) -> None:
        waiting, self._after = self._after, []
        for end, attempts, lock in waiting:
            if not lock.released:
                self.state.tree.dec_host_lock(lock)
            self.offer(end, attempts)
