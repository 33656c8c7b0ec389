"""From files into pages."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Sequence

from hicache_core.types import Outcome, Page
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

    def read(self, keys: Sequence[str], pages: Sequence[Page], deadline: float | None) -> list[Outcome]:
        """Fill each page from its file; what is left when the deadline passes is TIMEOUT."""
        now_ns = time.time_ns()
        counters, paths = self._store.counters, self._store.directory.find_each(keys)
        outcomes = []
        moved = 0
        for path, page in zip(paths, pages, strict=True):
            if deadline is not None and time.monotonic() > deadline:
                outcomes.append(Outcome.TIMEOUT)
                continue
            if path is None:
                outcomes.append(Outcome.MISS)
                continue
            try:
                outcome, done = self._read_one(path, page, now_ns)
                moved += done
                outcomes.append(outcome)
            except (FileNotFoundError, NotADirectoryError):
                outcomes.append(Outcome.MISS)
            except OSError as error:
                counters.note(error)
                outcomes.append(outcome_of_read(error))
        counters.add(bytes_read=moved)
        return outcomes

    def _read_one(self, path: str, page: Page, now_ns: int) -> tuple[Outcome, int]:
        """The outcome and the bytes that were moved. Raises OSError."""
        nbytes = page_nbytes(page)
        fd = os.open(path, self._flags, dir_fd=self._store.directory.fd)
        try:
            status = os.fstat(fd)
            if status.st_size != nbytes or not stat.S_ISREG(status.st_mode):
                return Outcome.CORRUPT, 0
            done = self._fill(fd, page, nbytes)
            if done != nbytes:
                return Outcome.CORRUPT, done
            self._store.note_use(fd, status.st_mtime_ns, now_ns)
        finally:
            os.close(fd)
        return Outcome.HIT, nbytes
