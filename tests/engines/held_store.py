"""A store in memory whose calls can be told to hang and to fail, for the backend `dynamic`."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, ClassVar

from hicache_core.types import Capabilities, IoContext, Outcome, Page

BOUND = 60.0
"""Seconds after which a call that nobody let go has failed."""


class HeldStore:
    """Calls of the hooks in `held` wait inside until `release` is set; those of the hooks in `fails` raise.

    entered is released by each call that waits, returned by each read that has written its last byte. A read takes
    its bytes before it waits, and writes them afterwards. Pages are taken as buffers only, so that a pool that is
    lent is read into by way of the session's memory.
    """

    opened: ClassVar[list[HeldStore]] = []

    def __init__(self) -> None:
        self.pages: dict[str, bytes] = {}
        self.held: set[str] = set()
        self.fails: set[str] = set()
        self.release = threading.Event()
        self.entered = threading.Semaphore(0)
        self.returned = threading.Semaphore(0)
        HeldStore.opened.append(self)

    def _hold(self, hook: str) -> None:
        if hook in self.held:
            self.entered.release()
            assert self.release.wait(BOUND)
        if hook in self.fails:
            raise RuntimeError("the store has had enough")

    def _read(self, hook: str, keys: Sequence[str], pages: Sequence[Page]) -> list[Outcome]:
        found = [self.pages.get(key) for key in keys]
        self._hold(hook)
        for data, page in zip(found, pages, strict=True):
            for buffer in page if data is not None else ():
                buffer[:], data = data[: len(buffer)], data[len(buffer) :]
        self.returned.release()
        return [Outcome.MISS if data is None else Outcome.HIT for data in found]

    def batch_exists(self, keys: Sequence[str]) -> int:
        self._hold("batch_exists")
        return next((i for i, key in enumerate(keys) if key not in self.pages), len(keys))

    def batch_get(self, keys: Sequence[str], pages: Sequence[Page]) -> list[Outcome]:
        return self._read("batch_get", keys, pages)

    def batch_set(self, keys: Sequence[str], pages: Sequence[Page]) -> list[Outcome]:
        self._hold("batch_set")
        self.pages.update((key, b"".join(page)) for key, page in zip(keys, pages, strict=True))
        return [Outcome.STORED] * len(keys)

    def close(self) -> None:
        self.release.set()


class NativeHeldStore(HeldStore):
    """Reads straight into a pool that is lent, so its reads are never abandoned."""

    capabilities = Capabilities(zero_copy_v1=True)

    def batch_get_v1(self, keys: Sequence[str], host_indices: Any, ctx: IoContext) -> list[Outcome]:
        assert isinstance(ctx.pages, Sequence)
        return self._read("batch_get_v1", keys, ctx.pages)


CONFIG: dict[str, Any] = {
    "backend": "dynamic",
    "options": {"module": __name__, "class_name": "HeldStore"},
    "timeout": 0.2,
    "write_workers": 1,
    "read_workers": 1,
}
"""What a door is configured with to stand over a HeldStore, with short deadlines."""
