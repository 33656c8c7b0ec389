"""The files that hold the slots, `slots/<slot bytes>.<0 … 3>`, sparse, made longer in large steps.

A length that is there before the bytes matters on 3FS, where the length of a file is told late to other clients;
elsewhere it is advisory, since a write makes the file longer by itself.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import stat
import threading
from collections.abc import Callable
from typing import TypeAlias

from hicache_hf3fs.index.interface import Slot, place
from hicache_hf3fs.root import FILE_MODE, Root

MAX_FILES = 512
"""Open files of one store. A cache has four for each kind of pool."""
File: TypeAlias = tuple[int, int]
"""(slot_bytes, number)."""
_STEP_BYTES = 1 << 30
_PUNCH = 0x01 | 0x02  # FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE
_libc = ctypes.CDLL(None, use_errno=True)


class SlotFiles:
    """Descriptors of the slot files of one root. Thread-safe."""

    def __init__(
        self,
        root: Root,
        on_open: Callable[[int], None] = lambda fd: None,
        on_close: Callable[[int], None] = lambda fd: None,
    ) -> None:
        """on_open, on_close: told of each descriptor (USRBIO wants them registered). Raises OSError."""
        self._directory = root.subdirectory("slots")
        self.path = f"{root.path}/slots"
        self._on_open, self._on_close = on_open, on_close
        self._fds: dict[File, int] = {}
        self._lengths: dict[File, int] = {}
        self._lock = threading.Lock()
        self.can_punch = True
        """False once the file system has said that it cannot give back the blocks of a slot."""

    def fd(self, file: File) -> int:
        """The descriptor of a file, made where it is missing. Raises OSError."""
        fd = self._fds.get(file)
        return self._open(file) if fd is None else fd

    def _open(self, file: File) -> int:
        with self._lock:
            if file in self._fds:
                return self._fds[file]
            if self._directory < 0 or len(self._fds) >= MAX_FILES:
                raise OSError(errno.EMFILE, f"{len(self._fds)} slot files are open, no more sizes of page are taken")
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
            fd = os.open(f"{file[0]}.{file[1]}", flags, FILE_MODE, dir_fd=self._directory)
            try:
                if not stat.S_ISREG(os.fstat(fd).st_mode):
                    raise OSError(errno.EINVAL, f"{self.path}/{file[0]}.{file[1]} is no regular file")
                self._on_open(fd)
            except BaseException:
                os.close(fd)
                raise
            self._fds[file] = fd
            return fd

    def reach(self, file: File, end: int) -> None:
        """Make the file at least `end` bytes long. Raises OSError (EFBIG, ENOSPC) where it cannot be."""
        if self._lengths.get(file, 0) >= end:
            return
        fd = self.fd(file)
        with self._lock:
            length = os.fstat(fd).st_size
            if length < end and _locked(fd):
                # Under the lock: another process may have made it longer meanwhile, and must not see it cut.
                try:
                    length = os.fstat(fd).st_size
                    if length < end:
                        length = -(-end // _STEP_BYTES) * _STEP_BYTES
                        os.ftruncate(fd, length)
                finally:
                    fcntl.flock(fd, fcntl.LOCK_UN)
            self._lengths[file] = length

    def punch(self, slot: Slot) -> None:
        """Give the blocks of a slot back to the file system. Raises OSError; `can_punch` is False where it cannot."""
        slot_bytes, number = slot
        stripe, at = place(number)
        offset, length = ctypes.c_int64(at * slot_bytes), ctypes.c_int64(slot_bytes)
        if _libc.fallocate(self.fd((slot_bytes, stripe)), _PUNCH, offset, length):
            code = ctypes.get_errno()
            if code in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
                self.can_punch = False
            raise OSError(code, os.strerror(code))

    def sync(self, files: set[File], how: Callable[[int], None]) -> None:
        """fsync or fdatasync these files. Raises OSError."""
        for file in files:
            how(self.fd(file))

    def close(self, *, ours: bool = True) -> None:
        """Close every file. ours False: in a forked child, which tells nobody."""
        if not ours:
            self._lock = threading.Lock()  # another thread of the parent may have held the old one
        with self._lock:
            fds, self._fds = self._fds, {}
            directory, self._directory = self._directory, -1
        for fd in fds.values():
            if ours:
                self._on_close(fd)
            os.close(fd)
        if directory >= 0:
            os.close(directory)


def _locked(fd: int) -> bool:
    """Take the file's lock if it is free: whoever holds it is making the file longer right now."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
