"""A process at work in a root: its temporaries, and the proof that it lives.

Every open store has a directory of its own, `+hicache/writers/<16 hex>/`, with a file `record` that it keeps locked
(flock goes with the process, however that ends) and that holds the bytes it has reserved. Temporaries are made here
under numbers and renamed to their place. Whoever finds a record that it can lock has found a dead writer and removes
its directory; a living one is never touched.
"""

from __future__ import annotations

import itertools
import os
import re
import struct
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from hicache_file.account import Account, Totals
from hicache_file.directory import DIRECTORY_MODE, FILE_MODE, Directory
from hicache_file.locks import try_lock
from hicache_file.names import CONTROL

WRITERS = f"{CONTROL}/writers"
_RECORD = "record"
_RESERVED = struct.Struct("<q")
_writer_name = re.compile(r"[0-9a-f]{16}").fullmatch
_temporary_name = re.compile(r"[0-9]+").fullmatch


@dataclass(slots=True)
class Swept:
    """What a look at the other writers found."""

    alive: int = 0
    dead: int = 0
    temporaries: int = 0
    """Left-over files that were removed."""


class Writer:
    """This process's place among the writers of a root."""

    def __init__(self, directory: Directory, account: Account, flags: int = 0) -> None:
        """Make the place. `flags`: further open(2) flags of temporaries. Raises OSError."""
        self.name = os.urandom(8).hex()
        self._directory, self._flags = directory, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | flags
        self._numbers = itertools.count()
        path = f"{WRITERS}/{self.name}"
        # Sweeping happens under the account's lock too, so nobody takes us for dead before the record is locked.
        with account.locked(), ExitStack() as undo:
            os.mkdir(path, DIRECTORY_MODE, dir_fd=directory.fd)
            self.fd = directory.open_directory(path)
            undo.callback(os.close, self.fd)
            self._record = os.open(
                _RECORD, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, FILE_MODE, dir_fd=self.fd
            )
            undo.callback(os.close, self._record)
            try_lock(self._record)
            self.record(0)
            undo.pop_all()

    def temporary(self) -> tuple[str, int]:
        """A new empty file: (its name relative to `self.fd`, its descriptor). Raises OSError."""
        name = str(next(self._numbers))
        return name, os.open(name, self._flags, FILE_MODE, dir_fd=self.fd)

    def remove(self, name: str) -> None:
        """Remove a temporary that may be gone."""
        try:
            os.unlink(name, dir_fd=self.fd)
        except FileNotFoundError:
            pass

    def record(self, reserved: int) -> None:
        """Note how many bytes this writer has reserved. Call it inside the account's lock."""
        os.pwrite(self._record, _RESERVED.pack(reserved), 0)

    def sweep(self, totals: Totals) -> Swept:
        """Remove what dead writers left and take back what they had reserved. Call it inside the account's lock."""
        swept = Swept()
        totals.reserved = _reserved(self._record)
        for name in _writer_names(self._directory):
            if name != self.name:
                self._look_at(name, totals, swept)
        return swept

    def _look_at(self, name: str, totals: Totals, swept: Swept) -> None:
        try:
            fd = self._directory.open_directory(f"{WRITERS}/{name}")
        except OSError:
            return
        try:
            alive, reserved = _state(fd)
            if alive:
                swept.alive += 1
                totals.reserved += reserved
                return
            # What it had reserved may be published and not yet on the account: count it as used until a scan.
            totals.used += reserved
            totals.dirty = True
            swept.dead += 1
            swept.temporaries += _empty(fd)
            with suppress(OSError):
                os.rmdir(f"{WRITERS}/{name}", dir_fd=self._directory.fd)
        finally:
            os.close(fd)

    def close(self, *, ours: bool = True) -> None:
        """Leave. `ours` false (a forked child): close the descriptors and touch nothing."""
        if self.fd < 0:
            return
        if ours:
            _empty(self.fd)
            with suppress(OSError):
                os.rmdir(f"{WRITERS}/{self.name}", dir_fd=self._directory.fd)
        os.close(self._record)
        os.close(self.fd)
        self.fd = self._record = -1


def make_control(directory: Directory) -> None:
    """Make the directories of our own records. Raises OSError."""
    for path in (CONTROL, WRITERS):
        with suppress(FileExistsError):
            os.mkdir(path, DIRECTORY_MODE, dir_fd=directory.fd)
        os.close(directory.open_directory(path))


def _writer_names(directory: Directory) -> list[str]:
    fd = directory.open_directory(WRITERS)
    try:
        return [name for name in os.listdir(fd) if _writer_name(name)]
    finally:
        os.close(fd)


def _state(directory_fd: int) -> tuple[bool, int]:
    """(whether the writer of this directory may live, the bytes it has reserved)."""
    try:
        record = os.open(_RECORD, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory_fd)
    except FileNotFoundError:
        return False, 0
    except OSError:
        return True, 0  # no descriptor to be had, not ours to read: that proves no death, and its files stay
    try:
        return not try_lock(record), _reserved(record)
    finally:
        os.close(record)


def _reserved(record: int) -> int:
    raw = os.pread(record, _RESERVED.size, 0)
    return int(_RESERVED.unpack(raw)[0]) if len(raw) == _RESERVED.size else 0


def _empty(fd: int) -> int:
    """Remove our files from a writer's directory, the record last; how many temporaries there were."""
    names = os.listdir(fd)
    temporaries = [name for name in names if _temporary_name(name)]
    for name in [*temporaries, _RECORD]:
        with suppress(OSError):
            os.unlink(name, dir_fd=fd)
    return len(temporaries)
