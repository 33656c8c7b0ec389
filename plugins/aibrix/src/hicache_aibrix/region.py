"""A page as a connector sees it: the one memory region that it reads or fills.

AIBrix's connectors take the bytes of a region (`tobytes`) or give it bytes (`fill`); where they lie is the region's
own affair. So a page needs no staging: its buffers are joined straight into the bytes that a connector stores, and
what it read is taken apart straight into them.
"""

from __future__ import annotations

import threading

from hicache_aibrix.errors import AnotherLengthError, RevokedError
from hicache_core.storage.staging import copy_page
from hicache_core.types import Page


class PageRegion:
    """What connectors use of `aibrix_kvcache.MemoryRegion`: `length`, `tobytes`, `fill`.

    The call that lent the page revokes the region when it ends. A thread that is still inside the connector then (a
    file system that does not answer) finds the region empty: it can neither touch the page's memory any more nor
    store what meanwhile lies there.
    """

    def __init__(self, page: Page, *, replace: bool = False) -> None:
        self.length = sum(buffer.nbytes for buffer in page)
        self.replace = replace
        self.filled = False
        """Whether every byte of the page was written."""
        self._page: Page | None = page
        self._lock = threading.Lock()

    def tobytes(self) -> bytes:
        """The page's bytes. RevokedError after the call has ended."""
        with self._lock:
            return b"".join(self._lent())

    def fill(self, data: bytes) -> None:
        """Write the page. AnotherLengthError, and nothing written, where the stored object has another length."""
        if len(data) != self.length:
            raise AnotherLengthError(f"{len(data)} bytes are stored, the page has {self.length}")
        with self._lock:
            copy_page(self._lent(), [memoryview(data)])
            self.filled = True

    def revoke(self) -> None:
        """The page is no longer lent. Waits for a copy that is under way, and for nothing else."""
        with self._lock:
            self._page = None

    def _lent(self) -> Page:
        if self._page is None:
            raise RevokedError("the call that lent this page has ended")
        return self._page
