"""Calls that are under way, and closing behind the last of them: the SDK must not be closed under a running call."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hicache_core.errors import MisuseError


class Gate:
    """what: the name of what is behind it, for errors. release: called once, when closed and no call is under way."""

    def __init__(self, what: str, release: Callable[[], None]) -> None:
        self._what, self._release = what, release
        self._pid = os.getpid()
        self._idle = threading.Condition()
        self._running = 0
        self._closing = False
        self._released = False

    @contextmanager
    def call(self) -> Iterator[None]:
        """Held during a call. Raises MisuseError after close, and in a forked process."""
        with self._idle:
            if self._closing:
                here = "closed" if os.getpid() == self._pid else f"of process {self._pid}; a forked one opens its own"
                raise MisuseError(f"this {self._what} is {here}")
            self._running += 1
        try:
            yield
        finally:
            with self._idle:
                self._running -= 1
                last = self._closing and not self._running
                self._idle.notify_all()
            if last:
                self._release_once()

    def close(self, patience: float) -> None:
        """Let nobody in any more, wait for those inside, release. After `patience` seconds the last one does it."""
        with self._idle:
            self._closing = True
            calm = self._idle.wait_for(lambda: not self._running, patience)
        if calm:
            self._release_once()

    def abandon(self) -> None:
        """In a forked child: nobody comes in, nothing is released. Another thread may have held the old lock."""
        self._idle = threading.Condition()
        self._closing = self._released = True

    def _release_once(self) -> None:
        with self._idle:
            again, self._released = self._released, True
        if not again:
            self._release()
