"""From files into pages."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Sequence

from hicache_core.types import IoContext, Outcome, Page
from hicache_file.errors import outcome_of_read
from hicache_file.pageio import page_nbytes, read_page, read_page_direct
from hicache_file.store import Store

# A link in a page's place is no page; NONBLOCK keeps a planted FIFO from holding us up.
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK


class Reader:
    """Reads pages of one open store. Thread-safe."""

    def __init__(self, store: Store) -> None:
        self._store = store
        direct = store.options.direct
        self._flags = _FLAGS | (os.O_DIRECT if direct else 0)
        self._fill = read_page_direct if direct else read_page

    def read(self, keys: Sequence[str], pages: Sequence[Page], ctx: IoContext) -> list[Outcome]:
        """Fill each page from its file; what is left when the deadline passes is TIMEOUT."""
        deadline, now_ns = ctx.deadline, time.time_ns()
        counters, paths = self._store.counters, self._store.directory.find_each(keys)
        outcomes = []
        moved = 0
        for index, (path, page) in enumerate(zip(paths, pages, strict=True)):
            if deadline is not None and time.monotonic() > deadline:
                outcomes.append(Outcome.TIMEOUT)
                continue
            try:
                outcome, done = self._read_one(path, page, now_ns)
                moved += done
                if outcome is Outcome.HIT:
                    ctx.verify_page(index)
                outcomes.append(outcome)
            except OSError as error:
                outcomes.append(self.told(error))
        counters.add(bytes_read=moved)
        return outcomes

    def told(self, error: OSError) -> Outcome:
        """What an error in opening or reading a page's file means."""
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            return Outcome.MISS
        self._store.counters.note(error)
        return outcome_of_read(error)

    def open_page(self, path: str | None, nbytes: int) -> tuple[int, os.stat_result] | Outcome:
        """The descriptor of a page's file, for the caller to close; or why there is none to read. Raises OSError."""
        if path is None:
            return Outcome.MISS
        fd = os.open(path, self._flags, dir_fd=self._store.directory.fd)
        try:
            status = os.fstat(fd)
        except BaseException:
            os.close(fd)
            raise
        if status.st_size != nbytes or not stat.S_ISREG(status.st_mode):
            os.close(fd)
            return Outcome.CORRUPT
        return fd, status

    def _read_one(self, path: str | None, page: Page, now_ns: int) -> tuple[Outcome, int]:
        """The outcome and the bytes that were moved. Raises OSError."""
        nbytes = page_nbytes(page)
        opened = self.open_page(path, nbytes)
        if isinstance(opened, Outcome):
            return opened, 0
        fd, status = opened
        try:
            done = self._fill(fd, page, nbytes)
            if done != nbytes:
                return Outcome.CORRUPT, done
            self._store.note_use(fd, status.st_mtime_ns, now_ns)
        finally:
            os.close(fd)
        return Outcome.HIT, nbytes
