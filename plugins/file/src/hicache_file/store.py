"""An open store: the root and everything that works on it."""

from __future__ import annotations

import os
from dataclasses import dataclass

from hicache_core.types import Capabilities
from hicache_file.account import Account
from hicache_file.directory import Directory
from hicache_file.locks import LockTimeout, RemovalLock
from hicache_file.options import FileOptions
from hicache_file.space import Space
from hicache_file.stats import Counters, FileStats
from hicache_file.writer import Writer


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
    touch_ns: float
    """Age from which a use renews a page's time stamp, in nanoseconds."""

    def note_use(self, page: int | str, mtime_ns: int, now_ns: int) -> None:
        """Renew the time stamp of a page (descriptor, or path under the root) unless it is recent."""
        # A time stamp from the future (a clock was set back) would keep a page for ever.
        if -self.touch_ns < now_ns - mtime_ns < self.touch_ns:
            return
        try:
            if isinstance(page, int):
                os.utime(page)
            else:
                os.utime(page, dir_fd=self.directory.fd, follow_symlinks=False)
        except OSError as error:
            self.counters.note(error)

    def stats(self) -> FileStats:
        """Counts of the root and of this open store."""
        totals = self.space.totals()
        if not totals.exact and not totals.reserved:
            try:
                self.space.reconcile()
                totals = self.space.totals()
            except LockTimeout:
                pass  # the numbers stay an upper bound, and `exact` says so
            except OSError as error:
                self.counters.note(error)
        counters, limits = self.counters, self.space.limits
        return FileStats(
            files=totals.files,
            bytes_allocated=totals.used,
            max_size=limits.max_size,
            min_free_space=limits.min_free_space,
            free_bytes=self.directory.free_bytes(),
            exact=totals.exact,
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
