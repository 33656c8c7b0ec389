"""Opening a root: everything that can be wrong is found here, with the mend, before anything is stored."""

from __future__ import annotations

import errno
import mmap
import os
from contextlib import ExitStack
from dataclasses import dataclass

from hicache_core.errors import OpenError, OptionError
from hicache_core.types import Capabilities
from hicache_file.account import Account
from hicache_file.directory import FILE_MODE, Directory, open_directory
from hicache_file.locks import LockTimeout, RemovalLock
from hicache_file.names import CONTROL
from hicache_file.options import DIRECT_ALIGNMENT, FileOptions, capabilities
from hicache_file.space import Limits, Space
from hicache_file.stats import Counters, FileStats
from hicache_file.writer import Writer, make_control

_CONTROL_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW


@dataclass(slots=True)
class Store:
    """An open root and everything that works on it."""

    options: FileOptions
    capabilities: Capabilities
    directory: Directory
    account: Account
    removal: RemovalLock
    writer: Writer
    space: Space
    counters: Counters
    block: int
    """Bytes in which the file system allocates."""

    def stats(self) -> FileStats:
        """Counts of the root and of this open store."""
        totals = self.space.totals()
        if totals.dirty and not totals.reserved:
            try:
                self.space.reconcile()
                totals = self.space.totals()
            except LockTimeout:
                pass  # the numbers stay an upper bound, and `exact` says so
        counters, limits = self.counters, self.space.limits
        return FileStats(
            files=totals.files,
            bytes_allocated=totals.used,
            max_size=limits.max_size,
            min_free_space=limits.min_free_space,
            free_bytes=self.directory.free_bytes(),
            exact=not totals.dirty,
            bytes_read=counters.bytes_read,
            bytes_written=counters.bytes_written,
            evictions=counters.evictions,
            evicted_bytes=counters.evicted_bytes,
            skipped=counters.skipped,
            temporaries_cleaned=counters.temporaries_cleaned,
            rejected=counters.rejected,
            errors=counters.errors,
            last_error=counters.last_error,
        )

    def close(self, *, ours: bool = True) -> None:
        """Let go of everything. `ours` false: in a forked child, which must leave the files alone."""
        self.writer.close(ours=ours)
        self.removal.close()
        self.account.close()
        self.directory.close()


def open_store(options: FileOptions) -> Store:
    """Open or make the store at options.root. Raises OptionError, OpenError."""
    with ExitStack() as undo:
        directory = open_directory(options.root, allow_symlink=options.allow_symlink)
        undo.callback(directory.close)
        limits = _limits(options, directory)
        counters = Counters()
        try:
            make_control(directory)
            account = Account(_control_file(directory, "account"))
            undo.callback(account.close)
            removal = RemovalLock(_control_file(directory, "removal.lock"))
            undo.callback(removal.close)
            writer = Writer(directory, account, os.O_DIRECT if options.direct else 0)
            undo.callback(writer.close)
            if options.direct:
                _probe_direct(writer, directory)
            space = Space(directory, account, removal, writer, limits, counters)
            _take_stock(space)
        except OpenError:
            raise
        except OSError as error:
            raise OpenError(
                f"root {directory.path} cannot be used by this user ({error.strerror}: {error.filename}); give it to "
                "the user that runs the engine, or name another root"
            ) from error
        undo.pop_all()
        block = max(512, os.fstatvfs(directory.fd).f_frsize)
        return Store(options, capabilities(options), directory, account, removal, writer, space, counters, block)


def _limits(options: FileOptions, directory: Directory) -> Limits:
    """The options, the cap not above what the file system could ever hold."""
    total = directory.total_bytes()
    if options.min_free_space >= total:
        raise OptionError(
            f"option min_free_space={options.min_free_space} leaves nothing of the file system at {directory.path}, "
            f"which has {total} bytes"
        )
    cap = options.max_size
    if cap is not None:
        cap = min(cap, total - options.min_free_space)
    return Limits(cap, options.min_free_space, options.eviction_ratio)


def _control_file(directory: Directory, name: str) -> int:
    return os.open(f"{CONTROL}/{name}", _CONTROL_FLAGS, FILE_MODE, dir_fd=directory.fd)


def _take_stock(space: Space) -> None:
    """Clean up after the dead. Alone in the root, believe the account only where nothing depends on it."""
    damaged = space.totals().dirty
    swept = space.sweep()
    if swept.alive:
        return
    if damaged or space.limits.any:
        try:
            space.reconcile()
        except LockTimeout:
            space.mark_dirty()
    else:
        space.mark_dirty()


def _probe_direct(writer: Writer, directory: Directory) -> None:
    """Write one aligned block with O_DIRECT. Raises OpenError where the file system cannot."""
    try:
        name, fd = writer.temporary()
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
            raise
        raise _no_direct(directory) from error
    try:
        with mmap.mmap(-1, DIRECT_ALIGNMENT) as block:
            os.pwrite(fd, block, 0)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
            raise
        raise _no_direct(directory) from error
    finally:
        os.close(fd)
        writer.remove(name)


def _no_direct(directory: Directory) -> OpenError:
    return OpenError(
        f"the file system at {directory.path} does not take O_DIRECT; set direct=false, or put root on one that does "
        "(ext4, xfs)"
    )
