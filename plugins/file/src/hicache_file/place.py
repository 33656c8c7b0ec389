"""One step from a temporary to its place, and only if the place is free.

renameat2 with RENAME_NOREPLACE is one system call; a hard link and an unlink are two, for file systems that have no
such rename; one that has no hard links either gets a look and a plain rename, where two writers of one key may both
be told STORED.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable

_RENAME_NOREPLACE = 1
_CANNOT = frozenset({errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM})
"""What a file system answers that does not have the operation."""

_Way = Callable[[str, str], None]


class Placer:
    """Moves files from one open directory to paths under another. Thread-safe."""

    def __init__(self, source: int, target: int) -> None:
        self._source, self._target = source, target
        self._rename_new = _renameat2()
        self._ways: list[_Way] = [self._link, self._look_and_rename]
        if self._rename_new is not None:
            self._ways.insert(0, self._rename)

    def place(self, name: str, path: str) -> bool:
        """Give the temporary `name` the place `path`; False where it is taken and the temporary is still there.

        Raises OSError, FileNotFoundError where the directory of `path` is gone.
        """
        while True:
            ways = self._ways
            try:
                ways[0](name, path)
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno not in _CANNOT or len(ways) == 1:
                    raise
                self._ways = ways[1:]  # this file system cannot; another thread may find the same
            else:
                return True

    def _rename(self, name: str, path: str) -> None:
        assert self._rename_new is not None
        if self._rename_new(self._source, name.encode(), self._target, path.encode(), _RENAME_NOREPLACE):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), path)

    def _link(self, name: str, path: str) -> None:
        os.link(name, path, src_dir_fd=self._source, dst_dir_fd=self._target, follow_symlinks=False)
        os.unlink(name, dir_fd=self._source)

    def _look_and_rename(self, name: str, path: str) -> None:
        if os.access(path, os.F_OK, dir_fd=self._target, follow_symlinks=False):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        os.rename(name, path, src_dir_fd=self._source, dst_dir_fd=self._target)


def _renameat2() -> Callable[[int, bytes, int, bytes, int], int] | None:
    """The C library's renameat2, or None where it has none (glibc before 2.28)."""
    function = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if function is None:
        return None
    function.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    function.restype = ctypes.c_int
    found: Callable[[int, bytes, int, bytes, int], int] = function
    return found
