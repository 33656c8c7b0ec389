"""Looking into a root without opening it as a store: for people and their scripts.

Nothing here makes or changes a file except `clean`, and every function works while engines use the root.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing

import msgspec

from hicache_file.account import Totals, decode
from hicache_file.directory import Directory, open_directory
from hicache_file.names import CONTROL
from hicache_file.opening import open_store
from hicache_file.options import FileOptions
from hicache_file.stats import FileStats
from hicache_file.walk import Stored, all_pages


class Usage(msgspec.Struct, kw_only=True, frozen=True):
    """What a scan of a root found."""

    files: int
    bytes_stored: int
    """Sum of lengths."""
    bytes_allocated: int
    """Sum of blocks: what the cap is about."""
    by_namespace: dict[str, int]
    """Bytes allocated."""
    oldest_use: float | None
    """Seconds since the epoch; None where there is no page."""
    newest_use: float | None
    account_files: int | None
    """What the account of the running processes says; None: there is none."""
    account_bytes: int | None


def pages(root: str, namespace: str | None = None, *, allow_symlink: bool = True) -> Iterator[Stored]:
    """Every page of one namespace or of all: key, path, length, allocated bytes, times. Raises OpenError."""
    with closing(open_directory(root, allow_symlink=allow_symlink, create=False)) as directory:
        yield from all_pages(directory, namespace)


def usage(root: str, *, allow_symlink: bool = True) -> Usage:
    """Add up a root. Raises OpenError."""
    with closing(open_directory(root, allow_symlink=allow_symlink, create=False)) as directory:
        account = _account(directory)
        files = stored = blocks = 0
        by_namespace: dict[str, int] = {}
        first: int | None = None
        last: int | None = None
        for page in all_pages(directory):
            files, stored, blocks = files + 1, stored + page.nbytes, blocks + page.allocated
            name = page.path.partition("/")[0]
            by_namespace[name] = by_namespace.get(name, 0) + page.allocated
            first = page.mtime_ns if first is None else min(first, page.mtime_ns)
            last = page.mtime_ns if last is None else max(last, page.mtime_ns)
        return Usage(
            files=files,
            bytes_stored=stored,
            bytes_allocated=blocks,
            by_namespace=by_namespace,
            oldest_use=None if first is None else first / 1e9,
            newest_use=None if last is None else last / 1e9,
            account_files=None if account is None else account.files,
            account_bytes=None if account is None else account.used,
        )


def clean(options: FileOptions) -> FileStats:
    """Remove what dead writers left, count again, evict down to the cap. Raises OpenError."""
    with closing(open_store(options)) as store:
        store.space.reconcile()
        store.space.make_room(0, None)
        return store.stats()


def _account(directory: Directory) -> Totals | None:
    try:
        fd = os.open(f"{CONTROL}/account", os.O_RDONLY | os.O_NOFOLLOW, dir_fd=directory.fd)
    except OSError:
        return None
    try:
        return decode(os.pread(fd, 4096, 0))
    finally:
        os.close(fd)
