"""A lock that is exclusive among threads and processes, and goes with the process that holds it."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_SHORTEST_POLL_SECONDS, _POLL_SECONDS = 0.00005, 0.002
PATIENCE_SECONDS = 5.0
"""How long to wait for the lock where a call has no deadline."""


class LockTimeout(Exception):
    """The lock did not become free in time."""


class RemovalLock:
    """Held by whoever removes pages of a root or counts them (eviction, delete, clear, replace, reconcile)."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._threads = threading.Lock()

    @contextmanager
    def held(self, deadline: float | None = None) -> Iterator[None]:
        """Wait for the lock until `deadline` (monotonic; none: 5 s) and hold it. Raises LockTimeout."""
        until = time.monotonic() + PATIENCE_SECONDS if deadline is None else deadline
        if not self._threads.acquire(timeout=max(0.0, until - time.monotonic())):
            raise LockTimeout("another thread is removing pages")
        try:
            wait_for_lock(self._fd, until, "another process is removing pages")
            try:
                yield
            finally:
                fcntl.flock(self._fd, fcntl.LOCK_UN)
        finally:
            self._threads.release()

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def wait_for_lock(fd: int, until: float, otherwise: str) -> None:
    """Take the flock, waiting until `until` (monotonic). Raises LockTimeout, saying `otherwise`.

    flock itself cannot wait with a limit, and a process that was stopped may hold it for ever.
    """
    pause = _SHORTEST_POLL_SECONDS
    while not try_lock(fd):
        if time.monotonic() >= until:
            raise LockTimeout(otherwise)
        time.sleep(pause)
        pause = min(2 * pause, _POLL_SECONDS)


def try_lock(fd: int) -> bool:
    """Take the flock if it is free."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
