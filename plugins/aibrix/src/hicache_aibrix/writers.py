"""Where a process writes before it publishes: a directory of its own in the root, gone when the process is.

`+hicache/writers/<16 hex>/` with a file `lock` that the process keeps locked (flock ends with the process, however
that ends). Whoever opens the root removes the directories whose lock is free. No name derives from a key: AIBrix's
own temporary names do, so two processes that store one key would write into one file.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hicache_core.errors import OpenError

CONTROL = "+hicache"
_PATIENCE_SECONDS, _POLL_SECONDS = 5.0, 0.005
_is_writer = re.compile(r"[0-9a-f]{16}").fullmatch


class WriterPlace:
    """This store's own directory among the writers of a root."""

    def __init__(self, root: Path) -> None:
        """Make it, and remove those of the dead. Raises OSError, OpenError."""
        writers = root / CONTROL / "writers"
        writers.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _alone(writers.parent / "lock"):
            _sweep(writers)
            self.path = writers / os.urandom(8).hex()
            self.path.mkdir(mode=0o700)
            self._lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def close(self) -> None:
        """Remove the directory."""
        if self._lock >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1

    def leave_to_parent(self) -> None:
        """In a forked child: forget it. The lock goes with the parent, which holds the same one."""
        os.close(self._lock)
        self._lock = -1


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Hold the root's lock: no writer's directory is half made while others are swept."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        until = time.monotonic() + _PATIENCE_SECONDS
        while not _try_lock(fd):
            if time.monotonic() >= until:
                raise OpenError(f"another process holds {path} and does not go on; end it, or name another root")
            time.sleep(_POLL_SECONDS)
        yield
    finally:
        os.close(fd)


def _sweep(writers: Path) -> None:
    for place in writers.iterdir():
        if not _is_writer(place.name) or place.is_symlink() or not place.is_dir():
            continue
        try:
            fd = os.open(place / "lock", os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            shutil.rmtree(place, ignore_errors=True)  # its maker died between two steps, or it is being removed
            continue
        except OSError:
            continue  # not ours to open: that proves no death
        try:
            if _try_lock(fd):
                shutil.rmtree(place, ignore_errors=True)
        finally:
            os.close(fd)


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
