"""A few things of which each serves one call at a time: arenas, agents, connections."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, TypeVar

T = TypeVar("T")

WAIT_WITHOUT_DEADLINE = 30.0
"""Seconds that a call without a deadline waits for one."""


class Lender(Generic[T]):
    """Lends each of the things to one call at a time. Owner of the free ones: `_free`, under `_returned`."""

    def __init__(self, things: Sequence[T]) -> None:
        self._all = len(things)
        self._free = list(things)
        self._returned = threading.Condition()
        self._lent = 0
        """Things in calls, counted once they retire."""
        self._then: Callable[[], None] | None = None

    @contextmanager
    def borrow(self, deadline: float | None) -> Iterator[T | None]:
        """The one given back last; None where none was free before the deadline, or they have retired."""
        until = time.monotonic() + WAIT_WITHOUT_DEADLINE if deadline is None else deadline
        with self._returned:
            self._returned.wait_for(lambda: self._free or self._then, max(0.0, until - time.monotonic()))
            lent = [self._free.pop()] if self._free else []
        try:
            yield lent[0] if lent else None
        finally:
            if lent:
                self._give_back(lent[0])

    def retire(self, then: Callable[[], None]) -> None:
        """Lend nothing any more. `then` is called once everything is back, now or by the call that was the last."""
        with self._returned:
            self._lent = self._all - len(self._free)
            self._free = []
            self._then = then
            self._returned.notify_all()
            last = self._lent == 0
        if last:
            then()

    def _give_back(self, thing: T) -> None:
        with self._returned:
            then = self._then
            if then is None:
                self._free.append(thing)
                self._returned.notify()
                return
            self._lent -= 1
            last = self._lent == 0
        if last:
            then()
