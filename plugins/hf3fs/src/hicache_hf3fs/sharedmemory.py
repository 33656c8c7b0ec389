"""Memory under /dev/shm that a 3FS client can map by name, and that does not outlive its process for long.

Not multiprocessing's SharedMemory: that starts a tracker process, and both leave the file behind after kill -9. Ours
is locked while its process lives; whoever opens the next one removes those that nobody holds.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import re
from contextlib import suppress

DIRECTORY = "/dev/shm"
_ours = re.compile(r"hicache-hf3fs-[0-9a-f]{16}").fullmatch


class SharedMemory:
    """A mapped file. name and buf: what `make_iovec` looks at. Raises OSError where there is no room."""

    def __init__(self, nbytes: int) -> None:
        _sweep()
        self.name = f"hicache-hf3fs-{os.urandom(8).hex()}"
        self._fd = os.open(f"{DIRECTORY}/{self.name}", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX)  # a sweep holds it for microseconds
            os.posix_fallocate(self._fd, 0, nbytes)  # else a full /dev/shm would be a SIGBUS later
            self._map = mmap.mmap(self._fd, nbytes)
        except BaseException:
            os.close(self._fd)
            os.unlink(f"{DIRECTORY}/{self.name}")
            raise
        self.buf = memoryview(self._map)

    def close(self, *, ours: bool = True) -> None:
        """Remove the name and let go; the memory goes with the last view of it. ours False: of the lock only."""
        if self._fd < 0:
            return
        os.close(self._fd)
        self._fd = -1
        if not ours:
            return
        with suppress(FileNotFoundError):
            os.unlink(f"{DIRECTORY}/{self.name}")
        with suppress(BufferError):
            self.buf.release()
            self._map.close()


def _sweep() -> None:
    """Remove what processes that died left."""
    for name in filter(_ours, os.listdir(DIRECTORY)):
        with suppress(OSError):
            path = f"{DIRECTORY}/{name}"
            fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Between making and locking one it looks dead for a moment, but is empty still.
                if os.fstat(fd).st_size:
                    os.unlink(path)
            finally:
                os.close(fd)
