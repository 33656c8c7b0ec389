"""One call to the store: its requests, spread over a few threads, and what becomes of it at its deadline.

Pages are lent to a call until it returns, but a request cannot be recalled. So whoever touches a page asks first
whether the call still goes on; a call that gives up waits for copies that have begun (less than a millisecond), but
for no request.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hicache_s3.daemon_pool import DaemonPool

LONGEST_SECONDS = 120.0
"""No call waits longer, also one without a deadline."""


def _nothing(_: int) -> None:
    """What is left to do once the call has returned."""


class Over(Exception):
    """The call has returned: its pages must not be touched any more."""


class Sweep:
    """Does `work(0)` … `work(count - 1)`, each once, on at most `window` threads of a pool."""

    def __init__(self, pool: DaemonPool, count: int, work: Callable[[int], None], *, window: int) -> None:
        self._pool, self._work, self._count, self._window = pool, work, count, window
        self._next = itertools.count().__next__
        self._changed = threading.Condition()
        self._over = False
        self._running = 0
        self._copying = 0
        self.failure: BaseException | None = None
        """What `work` raised, besides Over: a fault of ours."""

    def start(self) -> Sweep:
        """Hand the work to the pool."""
        for _ in range(min(self._window, self._count)):
            with self._changed:
                self._running += 1
            if not self._pool.submit(self._run):
                self._ended()
        return self

    @contextmanager
    def lent(self) -> Iterator[None]:
        """While a page is read or written. Raises Over where that is no longer allowed."""
        with self._changed:
            if self._over:
                raise Over
            self._copying += 1
        try:
            yield
        finally:
            with self._changed:
                self._copying -= 1
                if self._over and not self._copying:
                    self._changed.notify_all()

    def stop(self) -> None:
        """Begin no further work; what runs goes on."""
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def finish(self, deadline: float | None) -> bool:
        """Wait until all is done or somebody said stop; False at the deadline. No page is touched after it."""
        left = LONGEST_SECONDS if deadline is None else deadline - time.monotonic()
        wait = min(max(0.0, left), LONGEST_SECONDS)
        with self._changed:
            done = self._changed.wait_for(lambda: self._over or not self._running, wait)
            self._over = True
            self._changed.wait_for(lambda: not self._copying)  # a copy in memory: it ends
        self._work = _nothing  # or the pages would stay, in a cycle, until the garbage collector comes
        if self.failure is not None:
            raise self.failure
        return done

    def _run(self) -> None:
        try:
            while not self._over and (number := self._next()) < self._count:
                self._work(number)
        except Over:
            pass
        except BaseException as error:  # noqa: BLE001 - raised again by the caller's thread, in finish
            self.failure = error
        finally:
            self._ended()

    def _ended(self) -> None:
        with self._changed:
            self._running -= 1
            if not self._running:
                self._changed.notify_all()


def once(pool: DaemonPool, request: Callable[[], object], deadline: float) -> object:
    """The value of one request. Raises its error, or TimeoutError at the deadline."""
    landed: list[object] = []
    errors: list[BaseException] = []

    def work(_: int) -> None:
        try:
            landed.append(request())
        except BaseException as error:  # noqa: BLE001 - raised below, on the caller's thread; a Rust panic is no Exception
            errors.append(error)

    if not Sweep(pool, 1, work, window=1).start().finish(deadline):
        raise TimeoutError("no answer before the deadline")
    if errors:
        raise errors[0]
    return landed[0]
