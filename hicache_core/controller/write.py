"""L1 → L2: which nodes are backed up when, and the copies under way.

A node is marked and locked from the moment at which its copy is queued; what it holds in L2 is noted only when the
copy has ended, so nobody ever sees a host page that is not whole. While one copy runs, further ones gather and go
as one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hicache_core.controller.copies import CopyBatch
from hicache_core.controller.eviction import Evictor
from hicache_core.controller.memory import take
from hicache_core.controller.state import State, spans
from hicache_core.tree.node import Node
from hicache_core.types import Slots

SYNCHRONOUS_SECONDS = 60.0
"""Bound on a copy that eviction waits for; it moves megabytes within one machine."""

THRESHOLDS = {"write_through": 1, "write_through_selective": 2}
"""Inserts of a node after which it is backed up; write_back has none."""


@dataclass(slots=True)
class _Write:
    """One chain of nodes on its way to L2; the tree knows the nodes by `op_id`."""

    op_id: int
    device_slots: Slots
    host_slots: Slots


class WriteBatch(CopyBatch):
    """Writes that go as one copy. An `Operation`."""

    def __init__(self, path: WritePath, writes: list[_Write]) -> None:
        super().__init__()
        self._path, self.writes = path, writes

    def commit(self, agreed: int) -> None:
        """See Operation."""
        self._path.committed(self, bool(agreed))


class WritePath:
    """Backs nodes up. on_backed_up(node) hears of the end of each chain that is in L2."""

    def __init__(self, state: State, evictor: Evictor, on_backed_up: Callable[[Node], None]) -> None:
        self._state, self._evictor, self._on_backed_up = state, evictor, on_backed_up
        self._queued: list[_Write] = []
        self._running: WriteBatch | None = None

    @property
    def busy(self) -> bool:
        """Whether copies are queued or under way."""
        return bool(self._queued) or self._running is not None

    def inserted(self, last: Node) -> None:
        """A request's pages up to `last` were inserted: back up what the policy says.

        The path is locked by the caller.
        """
        state = self._state
        threshold = THRESHOLDS.get(state.config.hicache_write_policy)
        if threshold is None or state.host_pool is None or state.transfer is None:
            return
        nodes = state.tree.unbacked_path(last)
        while nodes and nodes[-1].hit_count < threshold:
            nodes.pop()
        if nodes:
            self.back_up(nodes)

    def back_up(self, nodes: Sequence[Node]) -> bool:
        """Queue copies of `nodes` (one path, top down, none in L2); whether there was room for all of them.

        Where room is short the first ones go, so that what is in L2 begins at the beginning.
        """
        state = self._state
        host = state.host_pool
        assert host is not None
        pages = sum(node.pages for node in nodes)
        chosen = list(nodes)
        slots = take(state, host, pages, self._evictor.evict_host)
        while slots is None and len(chosen) > 1:
            chosen.pop()
            slots = take(state, host, sum(node.pages for node in chosen), self._evictor.evict_host)
        if slots is None:
            state.counters.backup_skipped += pages
            return False
        state.counters.backup_skipped += pages - len(slots)
        op_id = state.next_id()
        state.tree.begin_write(op_id, chosen)
        device = np.concatenate([node.device for node in chosen if node.device is not None])
        self._queued.append(_Write(op_id, device, slots))
        self._flush()
        return len(slots) == pages

    def back_up_now(self, nodes: list[Node]) -> bool:
        """Back up before an eviction, and wait for the copy. Whether all is in L2 now."""
        tree = self._state.tree
        if not nodes:
            return True
        last = nodes[-1]
        tree.inc_lock(last)
        try:
            complete = self.back_up(nodes)
            self.finish()
        finally:
            tree.dec_lock(last)
        return complete and last.host is not None

    def finish(self) -> None:
        """Wait for every copy that is queued or under way, and commit them."""
        while self._running is not None:
            batch = self._running
            assert batch.ack is not None
            batch.ack.wait(SYNCHRONOUS_SECONDS)
            agreed = self._state.sync.minimum([batch.poll()])[0]
            if agreed < 0:
                return
            self._state.mailbox.forget(batch)
            self.committed(batch, bool(agreed))

    def committed(self, batch: WriteBatch, done: bool) -> None:
        """A copy has ended on all ranks."""
        state = self._state
        assert state.host_pool is not None
        self._running = None
        ends = []
        for write in batch.writes:
            nodes = state.tree.end_write(write.op_id)
            if not done:
                state.counters.backup_failed += len(write.host_slots)
                state.host_pool.free(write.host_slots)
                continue
            for node, span in zip(nodes, spans([node.pages for node in nodes]), strict=True):
                state.host_pool.free(state.tree.set_host(node, write.host_slots[span]))
            state.counters.backed_up += len(write.host_slots)
            ends.append(nodes[-1])
        self._flush()
        for node in ends:
            self._on_backed_up(node)

    def _flush(self) -> None:
        """Start what is queued, unless a copy runs already."""
        if self._running is not None or not self._queued:
            return
        state = self._state
        assert state.transfer is not None
        batch = WriteBatch(self, self._queued)
        self._queued, self._running = [], batch
        state.mailbox.watch(batch)
        pairs = [(write.host_slots, write.device_slots) for write in batch.writes]
        batch.ack = state.transfer.submit_backups(pairs, tag=batch)
