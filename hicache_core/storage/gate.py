"""For backends: the calls that are inside, closing behind the last of them, and what a forked child must not touch.

The session closes a store whose call never returned, too; a client must not be closed under a call that runs.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from hicache_core.errors import MisuseError

_log = logging.getLogger(__name__)


class Gate:
    """what: the name of what is behind it, for errors. release: called once, when closed and no call is inside."""

    def __init__(self, what: str, release: Callable[[], None]) -> None:
        self._what, self._release = what, release
        self._pid = os.getpid()
        self._idle = threading.Condition()
        self._inside = 0
        self._closed = False
        self._left_to_last = False
        """Close has stopped waiting: the last call releases."""
        self._released = False

    @contextmanager
    def call(self) -> Iterator[None]:
        """Held during a call. Raises MisuseError after close, and in a forked process."""
        with self._idle:
            if self._closed:
                here = "closed" if os.getpid() == self._pid else f"of process {self._pid}; a forked one opens its own"
                raise MisuseError(f"this {self._what} is {here}")
            self._inside += 1
        try:
            yield
        finally:
            with self._idle:
                self._inside -= 1
                self._idle.notify_all()
                last = self._left_to_last and self._take_release()
            if last:
                self._release()

    def close(self, patience: float) -> bool:
        """Let nobody in any more and wait for those inside, then release; at most `patience` seconds, after which the
        last of them does it. Whether all had left. Idempotent."""
        with self._idle:
            self._closed = True
            empty = self._idle.wait_for(lambda: not self._inside, patience)
            self._left_to_last = not empty
            mine = self._take_release()
        if mine:
            self._release()
        return empty

    def abandon(self) -> None:
        """In a forked child: nobody comes in and nothing is released."""
        self._idle = threading.Condition()  # another thread of the parent may have held the old one
        self._closed = self._released = True

    def _take_release(self) -> bool:
        """Whether the one who asks is to release. Under `_idle`."""
        if self._inside or self._released:
            return False
        self._released = True
        return True


class Inherited(Protocol):
    """Something open that a forked child finds in its memory."""

    def leave_to_parent(self) -> None:
        """In the child, before anything else runs there: give up what only the parent may use."""


_of_this_process: weakref.WeakSet[Inherited] = weakref.WeakSet()


def tell_forked_child(open_one: Inherited) -> None:
    """Have `open_one.leave_to_parent()` called in every child that is forked while it lives."""
    _of_this_process.add(open_one)


def _forked() -> None:
    """Every one of them: what one raises must not leave another usable in the child."""
    for one in list(_of_this_process):
        try:
            one.leave_to_parent()
        except Exception:  # noqa: BLE001 - there is no caller; the log keeps the cause
            _log.exception("%s could not be left to the parent process", type(one).__name__)
    _of_this_process.clear()


os.register_at_fork(after_in_child=_forked)
