"""L2 → L1: queued loads go as one copy, layer by layer, while the forward pass already runs.

The tree says "on the device" as soon as a load is queued, so that requests of the same batch share it; whoever uses
such a page waits for its layers (`wait_layer`). Until the acknowledgement the path is locked on both tiers. A load
that fails leaves nodes whose device pages hold nothing of use: they are hidden from matches at once and taken off
the device when the last request has let go of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from hicache_core.controller.copies import CopyBatch
from hicache_core.controller.state import State, spans
from hicache_core.errors import TransferError
from hicache_core.tree.locking import HostLock
from hicache_core.tree.node import Node
from hicache_core.types import Slots

WAIT_SECONDS = 60.0
"""Bound on waiting for a layer, or for a free set of layer marks: these move megabytes within one machine."""

NOTHING = -1
"""Producer id of a batch that waits for no load."""
FAILED = -2
"""Producer id of a batch with a request whose load has failed already."""


@dataclass(slots=True)
class _Load:
    """One chain of nodes on its way to L1. Splits keep `end` the end of it, so node and pages say which nodes."""

    end: Node
    pages: int
    host_slots: Slots
    device_slots: Slots
    host_lock: HostLock

    def nodes(self) -> list[Node]:
        """The nodes that were loaded, deepest first."""
        found, left, node = [], self.pages, self.end
        while left > 0 and node.parent is not None:
            found.append(node)
            left -= node.pages
            node = node.parent
        return found


class LoadBatch(CopyBatch):
    """Loads that go as one copy. An `Operation`."""

    def __init__(self, path: LoadPath, loads: list[_Load]) -> None:
        super().__init__()
        self._path, self.loads = path, loads

    def commit(self, agreed: int) -> None:
        """See Operation."""
        self._path.committed(self, bool(agreed))


class LoadPath:
    """Brings nodes back to L1."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._queued: list[_Load] = []
        self._running: deque[LoadBatch] = deque()
        self._dependencies: dict[int, list[LoadBatch]] = {}
        self._failed: list[_Load] = []

    @property
    def busy(self) -> bool:
        """Whether loads are queued or under way."""
        return bool(self._queued) or bool(self._running)

    def queue(self, nodes: Sequence[Node], device_slots: Slots) -> None:
        """Load `nodes` (one path, top down, in L2 only) into these pages, with the next batch."""
        tree, end = self._state.tree, nodes[-1]
        tree.inc_lock(end)
        host_slots = np.concatenate([node.host for node in nodes if node.host is not None])
        load = _Load(end, len(device_slots), host_slots, device_slots, tree.inc_host_lock(end))
        for node, span in zip(nodes, spans([node.pages for node in nodes]), strict=True):
            tree.set_device(node, device_slots[span])
        self._queued.append(load)

    def start(self) -> int:
        """Start everything queued as one copy; the producer id to wait for, -1 where there is nothing to wait for."""
        self._forget_finished()
        if self._queued:
            return self._launch()
        return max(self._dependencies, default=NOTHING) if self._running else NOTHING

    def wait_layer(self, producer: int, layer: int) -> None:
        """Return when the layer's pages of this batch, and of loads that it shares, are in L1.

        Raises TransferError where one of these loads failed.
        """
        if producer == NOTHING:
            return
        if producer == FAILED:
            raise TransferError("a load that a request of this batch depends on has failed")
        transfer = self._state.transfer
        assert transfer is not None
        transfer.wait_layer(producer, layer, WAIT_SECONDS)
        for batch in self._dependencies.get(producer, ()):
            if batch.failed:
                assert batch.ack is not None
                raise TransferError(
                    f"a load that batch {producer} shares failed: {batch.ack.error}"
                ) from batch.ack.error

    @property
    def running(self) -> bool:
        """Whether loads are under way."""
        return bool(self._running)

    def finish(self) -> None:
        """Start the loads that are queued; wait for all, and commit them."""
        if self._queued:
            self._launch()
        self.settle()

    def settle(self) -> None:
        """Wait for every load under way, and commit them."""
        while self._running:
            batch = self._running[0]
            assert batch.ack is not None
            batch.ack.wait(WAIT_SECONDS)
            agreed = self._state.sync.minimum([batch.poll()])[0]
            if agreed < 0:
                return
            self._state.mailbox.forget(batch)
            self.committed(batch, bool(agreed))

    def committed(self, batch: LoadBatch, done: bool) -> None:
        """A copy has ended on all ranks."""
        tree, counters = self._state.tree, self._state.counters
        self._running.remove(batch)
        for load in batch.loads:
            tree.dec_lock(load.end)
            tree.dec_host_lock(load.host_lock)
            if done:
                counters.loaded += load.pages
            else:
                counters.load_failed += load.pages
                self._failed.append(load)

    # nodes whose load failed

    @property
    def has_failed(self) -> bool:
        """Whether there are nodes on the device that hold nothing of use."""
        return bool(self._failed)

    def spoilt(self, path: Iterable[Node]) -> Node | None:
        """The first node of `path` whose device pages hold nothing of use."""
        bad = {node for load in self._failed for node in load.nodes() if node.device is not None}
        return next((node for node in path if node in bad), None)

    def reap(self) -> None:
        """Take spoilt nodes that nobody holds any more off the device."""
        state = self._state
        remaining = []
        for load in self._failed:
            for node in load.nodes():
                if node.device is not None and node.host is not None and not (node.lock_ref or node.device_children):
                    state.device_pool.free(state.tree.demote(node))
            if any(node.device is not None for node in load.nodes()):
                remaining.append(load)
        self._failed = remaining

    def forget_failed(self) -> None:
        """The tree has been emptied."""
        self._failed.clear()

    def _launch(self) -> int:
        state = self._state
        transfer = state.transfer
        assert transfer is not None
        for earlier in self._running:
            if transfer.can_load():
                break
            assert earlier.ack is not None
            if not earlier.ack.wait(WAIT_SECONDS):
                raise TransferError(f"a load has been under way for {WAIT_SECONDS} s and holds the layer marks")
        batch = LoadBatch(self, self._queued)
        state.mailbox.watch(batch)
        pairs = [(load.host_slots, load.device_slots) for load in batch.loads]
        ack = batch.ack = transfer.submit_load(pairs, tag=batch)
        assert ack.producer is not None
        self._queued = []
        self._dependencies[ack.producer] = list(self._running)
        self._running.append(batch)
        return ack.producer

    def _forget_finished(self) -> None:
        """Keep the dependencies of the newest batches only: an engine waits for the batch that it runs."""
        while len(self._dependencies) > 16:
            del self._dependencies[next(iter(self._dependencies))]
