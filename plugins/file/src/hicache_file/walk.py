"""Every page file of a store, and nothing else: what accounting, eviction, scan and the offline tools look at.

A file is a page of ours when its place says so: a legal namespace, a leaf directory, a name that decodes to a key of
that leaf, a regular file. All else is foreign and is neither listed nor counted. No link is followed.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from typing import NamedTuple

from hicache_file.directory import Directory
from hicache_file.names import LEAVES, key_of, legal_namespace

_NOT_OURS = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES, errno.EPERM})
BLOCK = 512
"""Unit of st_blocks in bytes."""


class Stored(NamedTuple):
    """One page file."""

    key: str
    path: str
    """Relative to the root."""
    nbytes: int
    """Length in bytes."""
    allocated: int
    """Bytes on disk: allocated blocks."""
    mtime_ns: int
    """When it was written or last used, nanoseconds since the epoch.

    Hits set it (rate-limited). The kernel's atime is of no use: relatime and noatime leave it behind, backups and
    other readers move it.
    """


def allocated(status: os.stat_result) -> int:
    """Bytes on disk."""
    return status.st_blocks * BLOCK


def _open(directory: Directory, path: str) -> int | None:
    """A descriptor, or None where no directory of ours is there.

    Raises OSError for what only fails now (no descriptor to be had, a disk that does not read): taken for an empty
    directory it would make the account too low.
    """
    try:
        return directory.open_directory(path)
    except OSError as error:
        if error.errno not in _NOT_OURS:
            raise
        return None


def namespaces(directory: Directory) -> list[str]:
    """Namespaces that have a directory, sorted."""
    # A descriptor of our own: whoever lists through the same one moves its offset, and each would see a part.
    fd = directory.open_directory(".")
    try:
        with os.scandir(fd) as entries:
            return sorted(e.name for e in entries if legal_namespace(e.name) and e.is_dir(follow_symlinks=False))
    finally:
        os.close(fd)


def leaves(directory: Directory, namespace: str) -> list[str]:
    """Leaf directories of a namespace, sorted; empty where it is not there. Raises OSError, see `_open`."""
    fd = _open(directory, namespace)
    if fd is None:
        return []
    try:
        return sorted(set(os.listdir(fd)).intersection(LEAVES))
    finally:
        os.close(fd)


def pages(directory: Directory, namespace: str, leaf: str) -> Iterator[Stored]:
    """The pages in one leaf directory, in no order, but for what vanishes meanwhile. Raises OSError, see `_open`."""
    fd = _open(directory, f"{namespace}/{leaf}")
    if fd is None:
        return
    try:
        with os.scandir(fd) as entries:
            for entry in entries:
                key = key_of(namespace, leaf, entry.name)
                if key is None:
                    continue
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                if stat.S_ISREG(status.st_mode):
                    path = f"{namespace}/{leaf}/{entry.name}"
                    yield Stored(key, path, status.st_size, allocated(status), status.st_mtime_ns)
    finally:
        os.close(fd)


def all_pages(directory: Directory, namespace: str | None = None) -> Iterator[Stored]:
    """Every page of one namespace or of all."""
    for name in namespaces(directory) if namespace is None else [namespace]:
        for leaf in leaves(directory, name):
            yield from pages(directory, name, leaf)
