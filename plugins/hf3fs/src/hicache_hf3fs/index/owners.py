"""Who holds reserved slots, and whether they are still alive.

Embedded: each open store keeps a file of its own locked (flock goes with the process, however that ends); whoever
can lock it has found a dead one. Service: a reservation has a term, since the service cannot see its clients die.
"""

from __future__ import annotations

import fcntl
import os
import re
import sqlite3
import time
from contextlib import suppress

from hicache_hf3fs.root import FILE_MODE, Root

_name = re.compile(r"[0-9a-f]{16}").fullmatch
TERM_SECONDS = 60.0
"""How long a client of the service holds a slot."""
GRACE_SECONDS = 60.0
"""How much later the service gives it to another."""


class LivingOwner:
    """This process among the owners of an embedded index."""

    def __init__(self, directory: Root) -> None:
        """Make our file. Call it in a write transaction, as `sweep`, so that nobody takes us for dead meanwhile."""
        self.name = os.urandom(8).hex()
        self._fd = directory.subdirectory("owners")
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            self._lock = os.open(self.name, flags, FILE_MODE, dir_fd=self._fd)
        except OSError:
            os.close(self._fd)
            raise
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def until(self) -> float | None:
        """When what is reserved now runs out."""
        return None

    def sweep(self, connection: sqlite3.Connection) -> int:
        """Take back what dead owners held; how many there were. Call it in a write transaction."""
        dead = [name for name in os.listdir(self._fd) if _name(name) and name != self.name and self._is_dead(name)]
        held = {owner for (owner,) in connection.execute("SELECT DISTINCT owner FROM held")}
        lost = [owner for owner in held if not os.access(owner, os.F_OK, dir_fd=self._fd)]
        for owner in {*dead, *lost}:
            give_back(connection, "owner = ?", (owner,))
        for name in dead:
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self._fd)
        return len(dead)

    def _is_dead(self, name: str) -> bool:
        try:
            fd = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=self._fd)
        except OSError:
            return False  # no descriptor to be had, not ours to read: that proves no death
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        finally:
            os.close(fd)
        return True

    def close(self, *, ours: bool) -> None:
        """Leave. ours False: close the descriptors, so that the file is not held beyond the parent's life."""
        if self._fd < 0:
            return
        if ours:
            with suppress(FileNotFoundError):
                os.unlink(self.name, dir_fd=self._fd)
        os.close(self._lock)
        os.close(self._fd)
        self._fd = self._lock = -1


class Terms:
    """Owners that a service cannot see: what they hold runs out."""

    def __init__(self, seconds: float = TERM_SECONDS, grace: float = GRACE_SECONDS) -> None:
        self.seconds, self._grace = seconds, grace

    def until(self) -> float | None:
        """When what is reserved now may be given to another."""
        return time.time() + self.seconds + self._grace

    def sweep(self, connection: sqlite3.Connection) -> int:
        """Take back what has run out; how many slots."""
        now = time.time()
        return give_back(connection, "until < ?", (now,))

    def close(self, *, ours: bool) -> None:
        """Nothing is held."""


def give_back(connection: sqlite3.Connection, which: str, values: tuple[object, ...]) -> int:
    """Held slots become free ones; they may hold blocks."""
    connection.execute(f"INSERT OR IGNORE INTO free SELECT slot_bytes, 0, slot FROM held WHERE {which}", values)
    return connection.execute(f"DELETE FROM held WHERE {which}", values).rowcount
