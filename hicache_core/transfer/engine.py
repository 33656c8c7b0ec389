"""Copies between the device pool (L1) and the host pool (L2), behind the engine's back."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hicache_core.errors import MisuseError, TransferError
from hicache_core.pools.device.base import DevicePool
from hicache_core.pools.host.base import HostPool
from hicache_core.transfer.ack import Ack, Direction
from hicache_core.transfer.backends import make_copier
from hicache_core.transfer.copier import Copier
from hicache_core.transfer.counter import LayerDoneCounter
from hicache_core.transfer.worker import CopyThread
from hicache_core.types import Slots

Pair = tuple[Slots, Slots]
"""(host slots, device slots), paired by position."""

LayerHook = Callable[[Direction, int], None]
"""Called by a copy thread before it copies: ("load", layer), or ("backup", 0) once. What it raises fails the copy."""


class TransferEngine:
    """Two copy threads, one per direction, so that a load and a backup run beside each other and beside the forward.

    The engine's thread submits, polls and waits. A submission is one copy, in the order of submission within its
    direction; the caller keeps its pages (both sides) allocated and untouched until the ack is done. Loads go layer
    by layer: `wait_layer` lets layer n's attention start while later layers still load.
    """

    def __init__(
        self,
        host_pool: HostPool,
        device_pool: DevicePool,
        *,
        io_backend: str = "kernel",
        hook: LayerHook | None = None,
        on_done: Callable[[Ack], None] | None = None,
    ) -> None:
        """hook: for tests and faults. on_done: called by the copy thread after an ack is done and can be polled.

        Raises ConfigError where pools or io backend do not fit one another.
        """
        self.host_pool = host_pool
        self.device_pool = device_pool
        self.io_backend = io_backend
        self.counter = LayerDoneCounter(device_pool.geometry.layer_num)
        self.escaped: list[BaseException] = []
        self._copier: Copier | None = make_copier(host_pool, device_pool, io_backend)
        self._hook = hook
        self._on_done = on_done
        self._acks: deque[Ack] = deque()
        self._in_flight = 0
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._threads = {
            "backup": CopyThread("hicache-d2h", self.escaped.append),
            "load": CopyThread("hicache-h2d", self.escaped.append),
        }

    # -- engine's thread

    def submit_backup(self, host_slots: Slots, device_slots: Slots, *, tag: Any = None) -> Ack:
        """Copy pages L1 to L2, every layer: host_slots[i] receives device_slots[i]. MisuseError on bad slots."""
        return self.submit_backups([(host_slots, device_slots)], tag=tag)

    def submit_backups(self, pairs: Sequence[Pair], *, tag: Any = None) -> Ack:
        """Several backups as one copy with one ack."""
        copier = self._open()
        host_slots, device_slots = self._merged(pairs)
        fence = copier.fence()
        ack = Ack("backup", host_slots.size, tag)

        def copy() -> None:
            self._call_hook("backup", 0)
            copier.backup(host_slots, device_slots, fence)

        return self._submit(ack, copy)

    def submit_load(self, pairs: Sequence[Pair], *, producer: int | None = None, tag: Any = None) -> Ack:
        """Copy pages L2 to L1, layer by layer, all pairs merged: device_slots[i] receives host_slots[i].

        producer: an id from counter.new_producer(); None takes a new one (ack.producer), which raises MisuseError
        while all sets are in use: ask can_load() first.
        """
        copier = self._open()
        host_slots, device_slots = self._merged(pairs)
        fence = copier.fence()
        claimed = self.counter.new_producer() if producer is None else producer
        ack = Ack("load", host_slots.size, tag, claimed)

        def copy() -> None:
            for layer in range(self.counter.layer_num):
                self._call_hook("load", layer)
                event = copier.load_layer(layer, host_slots, device_slots, fence)
                self.counter.complete(claimed, layer, event)
            copier.finish_load()

        return self._submit(ack, copy)

    def can_load(self) -> bool:
        """Whether the counter has a free set for another load."""
        return self.counter.has_free_set()

    def wait_layer(self, producer: int, layer: int, timeout: float | None = None) -> None:
        """Before layer `layer`'s attention: return when its pages of this load are in L1 (on a GPU: ordered before
        what the calling thread submits next). Raises as LayerDoneCounter.wait does."""
        event = self.counter.wait(producer, layer, timeout)
        if event is not None:
            self._open().wait_event(event)

    def poll(self) -> list[Ack]:
        """Acks that were finished since the last poll, in the order in which they were. Never blocks."""
        acks = []
        while self._acks:
            acks.append(self._acks.popleft())
        return acks

    @property
    def in_flight(self) -> int:
        """Submissions whose ack is not done yet."""
        return self._in_flight

    def close(self, timeout: float = 10.0) -> bool:
        """End both threads: the copy that runs ends, queued ones fail. Idempotent. Whether both threads have ended.

        timeout: seconds for both together. Afterwards nothing here holds the pools' memory.
        """
        deadline = time.monotonic() + timeout
        self._copier = None
        for thread in self._threads.values():
            thread.close()
        ended = [thread.join(max(0.0, deadline - time.monotonic())) for thread in self._threads.values()]
        return all(ended)

    # -- copy threads

    def _submit(self, ack: Ack, copy: Callable[[], None]) -> Ack:
        with self._lock:
            self._in_flight += 1

        def job(run: bool) -> None:
            try:
                if not run:
                    raise MisuseError("the transfer engine was closed before this copy began")
                copy()
            except BaseException as error:  # noqa: BLE001 - kept as the cause of the ack's error
                self._end(ack, _failure(ack, error))
            else:
                self._end(ack, None)

        self._threads[ack.direction].submit(job)
        return ack

    def _end(self, ack: Ack, failure: TransferError | None) -> None:
        if failure is not None and ack.producer is not None:
            self.counter.fail(ack.producer, failure)
        with self._lock:
            self._in_flight -= 1
        ack.finish(failure)
        self._acks.append(ack)
        if self._on_done is not None:
            self._on_done(ack)

    def _call_hook(self, direction: Direction, layer: int) -> None:
        if self._hook is not None:
            self._hook(direction, layer)

    def _open(self) -> Copier:
        if self._copier is None:
            raise MisuseError("the transfer engine is closed")
        if os.getpid() != self._pid:
            raise MisuseError("the transfer engine belongs to the process that made it; a forked child needs its own")
        return self._copier

    def _merged(self, pairs: Sequence[Pair]) -> Pair:
        """All pairs as one, checked before anything moves."""
        host = [np.asarray(host, dtype=np.int64) for host, _ in pairs]
        device = [np.asarray(device, dtype=np.int64) for _, device in pairs]
        if any(a.shape != b.shape or a.ndim != 1 for a, b in zip(host, device, strict=True)):
            raise MisuseError("host and device slots of a copy must be one-dimensional and of equal length")
        host_slots = np.concatenate(host) if host else np.empty(0, np.int64)
        device_slots = np.concatenate(device) if device else np.empty(0, np.int64)
        for side, slots, count in (
            ("host", host_slots, self.host_pool.num_pages),
            ("device", device_slots, self.device_pool.num_pages),
        ):
            if slots.size and (int(slots.min()) < 0 or int(slots.max()) >= count):
                raise MisuseError(f"{side} slot out of range: the pool has {count} pages")
        return host_slots, device_slots


def _failure(ack: Ack, error: BaseException) -> TransferError:
    failure = TransferError(f"{ack.direction} of {ack.pages} pages failed: {error}")
    failure.__cause__ = error
    return failure
