"""What I/O threads tell the engine's thread, and how both agree with the other ranks about it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol

from hicache_core.controller.sync import RankSync


class Operation(Protocol):
    """Work in flight on another thread. Engine thread only, but for whoever posts it."""

    def poll(self) -> int:
        """-1 while it runs, then what came of it, a number of which the minimum over ranks is right for all."""

    def commit(self, agreed: int) -> None:
        """Act on what all ranks agreed came of it. Called once; must not raise for a fault of I/O."""


class Mailbox:
    """Acknowledgements from other threads to the engine's thread.

    `post` and `call` are for any thread; `settle` and `wait` for the engine's. An operation is `watch`ed from its
    start, in an order that is equal on all ranks, and committed once in `settle` when every rank has it done.
    """

    def __init__(self, sync: RankSync) -> None:
        self._sync = sync
        self._done: deque[Operation] = deque()
        self._calls: deque[Callable[[], None]] = deque()
        self._event = threading.Event()
        self._watched: dict[int, Operation] = {}

    def __len__(self) -> int:
        return len(self._watched)

    def watch(self, operation: Operation) -> None:
        """Expect this operation to be posted once it is done."""
        self._watched[id(operation)] = operation

    def forget(self, operation: Operation) -> None:
        """No longer commit this operation."""
        self._watched.pop(id(operation), None)

    def post(self, operation: Operation) -> None:
        """Any thread: this operation is done."""
        self._done.append(operation)
        self._event.set()

    def call(self, function: Callable[[], None]) -> None:
        """Any thread: run this on the engine's thread, at its next pass. For what concerns one rank alone."""
        self._calls.append(function)
        self._event.set()

    def wait(self, timeout: float) -> bool:
        """Park until something was posted, at most `timeout` seconds; whether something was."""
        return self._event.wait(timeout)

    def settle(self) -> int:
        """Commit everything that is done on all ranks, and run what `call` left; how many. Never blocks on I/O."""
        ran = self.run_calls()
        return ran + (self._settle_alone() if self._sync.size == 1 else self._settle_together())

    def run_calls(self) -> int:
        """Run what `call` left; how many. Concerns this rank alone."""
        self._event.clear()
        ran = 0
        while self._calls:
            self._calls.popleft()()
            ran += 1
        return ran

    def _settle_alone(self) -> int:
        committed = 0
        while self._done:
            operation = self._done.popleft()
            value = operation.poll()
            if value >= 0 and self._watched.pop(id(operation), None) is not None:
                operation.commit(value)
                committed += 1
        return committed

    def _settle_together(self) -> int:
        self._done.clear()
        operations = list(self._watched.values())
        agreed = self._sync.minimum([operation.poll() for operation in operations])
        committed = 0
        for operation, value in zip(operations, agreed, strict=True):
            if value >= 0 and self._watched.pop(id(operation), None) is not None:
                operation.commit(value)
                committed += 1
        return committed
