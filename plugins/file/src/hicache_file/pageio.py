"""Bytes between a page's buffers and an open file, without a buffer of our own.

A page is a sequence of buffers; at most IOV_MAX of them go in one system call. With O_DIRECT, pages whose addresses
or sizes are not aligned go through an aligned bounce buffer.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable, Sequence

from hicache_core.types import Buffer, Page
from hicache_file.options import DIRECT_ALIGNMENT

IOV_MAX = 1024
"""Buffers in one preadv or pwritev call, at most (Linux: UIO_MAXIOV)."""

_Vector = Callable[[int, Sequence[Buffer], int], int]


def page_nbytes(page: Page) -> int:
    """Bytes of all buffers together."""
    return sum([buffer.nbytes for buffer in page])


def write_page(fd: int, page: Page, nbytes: int) -> None:
    """Write the buffers one after the other from offset 0. Raises OSError, also where nothing more was taken."""
    if nbytes and (len(page) > IOV_MAX or os.pwritev(fd, page, 0) != nbytes):
        # A short write says that the disk is filling up: the next call tells why.
        written = _move(os.pwritev, fd, page, nbytes)
        if written != nbytes:
            raise OSError(errno.EIO, f"only {written} of {nbytes} bytes were taken")


def read_page(fd: int, page: Page, nbytes: int) -> int:
    """Fill the buffers from offset 0; the bytes that were read: fewer than nbytes where the file ended."""
    if nbytes and len(page) <= IOV_MAX:
        done = os.preadv(fd, page, 0)
        if done == nbytes:
            return done
    return _move(os.preadv, fd, page, nbytes)


def _move(vector: _Vector, fd: int, page: Page, nbytes: int) -> int:
    """Call again until all is moved or a call moves nothing. Starts over: page I/O can be repeated."""
    done = 0
    rest = list(page)
    while done < nbytes:
        moved = vector(fd, rest[:IOV_MAX], done)
        if not moved:
            break
        done += moved
        rest = _after(rest, moved)
    return done


def _after(buffers: list[Buffer], moved: int) -> list[Buffer]:
    """The buffers without their first `moved` bytes."""
    for index, buffer in enumerate(buffers):
        if moved < buffer.nbytes:
            return [buffer[moved:], *buffers[index + 1 :]]
        moved -= buffer.nbytes
    return []


def write_page_direct(fd: int, page: Page, nbytes: int) -> None:
    """write_page on a descriptor with O_DIRECT."""
    if not _aligned_length(page, nbytes) or not _try_whole(os.pwritev, fd, page, nbytes):
        size = -(-nbytes // DIRECT_ALIGNMENT) * DIRECT_ALIGNMENT
        if not size:
            return
        bounce = memoryview(mmap.mmap(-1, size))  # not closed: views of it live on in an error's frames
        at = 0
        for buffer in page:
            bounce[at : at + buffer.nbytes] = buffer
            at += buffer.nbytes
        write_page(fd, [bounce], size)
        os.ftruncate(fd, nbytes)


def read_page_direct(fd: int, page: Page, nbytes: int) -> int:
    """read_page on a descriptor with O_DIRECT."""
    if _aligned_length(page, nbytes) and _try_whole(os.preadv, fd, page, nbytes):
        return nbytes
    size = -(-nbytes // DIRECT_ALIGNMENT) * DIRECT_ALIGNMENT
    if not size:
        return 0
    bounce, done = memoryview(mmap.mmap(-1, size)), 0
    # Only the end of the file makes a read short by less than the alignment.
    while moved := os.preadv(fd, [bounce[done:]], done):
        done += moved
        if done >= nbytes or done % DIRECT_ALIGNMENT:
            break
    at = 0
    for buffer in page:
        taken = max(0, min(buffer.nbytes, done - at))
        buffer[:taken] = bounce[at : at + taken]
        at += buffer.nbytes
    return min(done, nbytes)


def _aligned_length(page: Page, nbytes: int) -> bool:
    return 0 < len(page) <= IOV_MAX and not nbytes % DIRECT_ALIGNMENT


def _try_whole(vector: _Vector, fd: int, page: Page, nbytes: int) -> bool:
    """One call for the whole page; False where the kernel finds a buffer not aligned or moves a part only."""
    try:
        return vector(fd, page, 0) == nbytes
    except OSError as error:
        if error.errno == errno.EINVAL:
            return False
        raise
