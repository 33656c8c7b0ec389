"""The account of a root: how much its pages take, kept in a small file that all processes share under flock.

Read and written with pread and pwrite inside the lock (no mapping), so that it also holds where several hosts mount
the directory and locks work. Nothing here is ever synced: after a power cut whoever opens the store alone counts
again (`space.Space.reconcile`).
"""

from __future__ import annotations

import fcntl
import os
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from zlib import crc32

from hicache_core.errors import OpenError
from hicache_file import locks

_MAGIC = b"HICFILE\0"
_VERSION = 1
_FIELDS = struct.Struct("<8sIIqqqqq")
_CHECK = struct.Struct("<I")
_SIZE = _FIELDS.size + _CHECK.size


@dataclass(slots=True)
class Totals:
    """What the account says. Bytes are allocated blocks, as `du` counts them."""

    used: int = 0
    """Bytes of all published pages."""
    files: int = 0
    reserved: int = 0
    """Bytes that running sets may still add."""
    settled: int = 0
    """Goes up with every set that ended; tells a scan that it was not alone."""
    removed: int = 0
    """Pages that were ever removed (evicted, deleted, cleared)."""
    dirty: bool = False
    """Whether the numbers may be wrong, since a process died at work; the next scan mends them."""
    removing: bool = False
    """Whether whoever holds the removal lock has removed pages that are still on the account."""

    @property
    def exact(self) -> bool:
        """Whether the account equals a scan, but for what is being written now."""
        return not self.dirty and not self.removing


class Account:
    """The account, for threads of this process and for other processes."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._threads = threading.Lock()

    @contextmanager
    def locked(self) -> Iterator[Totals]:
        """The totals, to read and to change; written back on leaving without an error. Hold it for microseconds.

        Raises LockTimeout where whoever holds it does not go on (a process that was stopped).
        """
        until = time.monotonic() + locks.PATIENCE_SECONDS
        if not self._threads.acquire(timeout=locks.PATIENCE_SECONDS):
            raise locks.LockTimeout("another thread waits for the account")
        try:
            locks.wait_for_lock(self._fd, until, "another process holds the account and does not go on")
            try:
                totals = self._read()
                yield totals
                self._write(totals)
            finally:
                fcntl.flock(self._fd, fcntl.LOCK_UN)
        finally:
            self._threads.release()

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _read(self) -> Totals:
        raw = os.pread(self._fd, _SIZE, 0)
        return decode(raw) or Totals(dirty=True)

    def _write(self, totals: Totals) -> None:
        os.pwrite(self._fd, encode(totals), 0)


class Debit:
    """Takes removed pages off the account. Used inside the removal lock."""

    def __init__(self, account: Account) -> None:
        self._account = account
        self.bytes = 0
        self.files = 0

    def __enter__(self) -> Debit:
        with self._account.locked() as totals:
            # Whoever held the removal lock before us and died in here left the account too high.
            totals.dirty = totals.dirty or totals.removing
            totals.removing = True
        return self

    def add(self, nbytes: int) -> None:
        """One page of so many bytes is gone."""
        self.bytes += nbytes
        self.files += 1

    def __exit__(self, *_: object) -> None:
        with self._account.locked() as totals:
            totals.used -= self.bytes
            totals.files -= self.files
            totals.removed += self.files
            totals.removing = False


def encode(totals: Totals) -> bytes:
    """The account as it is stored."""
    fields = _FIELDS.pack(
        _MAGIC,
        _VERSION,
        totals.dirty | totals.removing << 1,
        totals.used,
        totals.files,
        totals.reserved,
        totals.settled,
        totals.removed,
    )
    return fields + _CHECK.pack(crc32(fields))


def decode(raw: bytes) -> Totals | None:
    """The stored account, or None where it is missing or damaged. Raises OpenError for a later version."""
    if len(raw) < _SIZE or _CHECK.unpack_from(raw, _FIELDS.size)[0] != crc32(raw[: _FIELDS.size]):
        return None
    magic, version, flags, used, files, reserved, settled, removed = _FIELDS.unpack_from(raw)
    if magic != _MAGIC:
        return None
    if version != _VERSION:
        raise OpenError(f"a later hicache-file wrote this store (layout {version}, ours {_VERSION}); upgrade")
    return Totals(used, files, reserved, settled, removed, bool(flags & 1), bool(flags & 2))
