"""What keeps calls away from a server that does not answer.

A call to a dead master blocks for seconds, and the SDK's own health check says that all is well. So the first call
that got no answer trips the latch, and from then on a call goes through only after a knock (a connection and twenty
bytes) was answered; that happens by itself when the server is back. A store that was not used for a while is
knocked at before the next call, for the same reason.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from hicache_core.errors import StorageError

FRESH_SECONDS = 1.0
"""How long an answer vouches for the server."""


class Latch:
    """knock: empty text where the server answers, else why not; bounded. Thread-safe; no lock is held in a knock."""

    def __init__(
        self, knock: Callable[[], str], interval: float, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._knock, self._interval, self._clock = knock, interval, clock
        self._answered = clock()
        self._trouble = ""
        self._next = 0.0
        self._knocking = threading.Lock()
        self.trips = 0
        """How often an answering server was found silent."""

    @property
    def trouble(self) -> str:
        """Why calls are kept away now; empty where they are not."""
        return self._trouble

    def check(self) -> None:
        """Return where a call may be made. Raises StorageError at once, or after a knock, where it may not."""
        now = self._clock()
        if not self._trouble and now - self._answered < FRESH_SECONDS:
            return
        if self._trouble and now < self._next:
            raise StorageError(self._trouble)
        if not self._knocking.acquire(blocking=False):  # another thread is finding out
            if self._trouble:
                raise StorageError(self._trouble)
            return
        try:
            trouble = self._knock()
            if trouble:
                self._trip(trouble)
                raise StorageError(trouble)
            self.answered()
        finally:
            self._knocking.release()

    def answered(self) -> None:
        """A call came back with an answer of the server."""
        self._answered = self._clock()
        self._trouble = ""

    def silent(self, trouble: str) -> None:
        """A call came back without one."""
        self._trip(trouble)

    def _trip(self, trouble: str) -> None:
        if not self._trouble:
            self.trips += 1
        self._trouble = trouble
        self._next = self._clock() + self._interval
