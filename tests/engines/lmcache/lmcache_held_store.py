"""A store in memory for tests, whose calls can be told to hang."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar

from hicache_core.types import Outcome

BOUND = 60.0
"""Seconds after which a call that nobody let go has failed."""


class HeldStore:
    """Calls of the hooks in `held` wait inside until `release` is set; `entered` and `returned` count them."""

    opened: ClassVar[list[HeldStore]] = []

    def __init__(self) -> None:
        self.pages: dict[str, bytes] = {}
        self.held: set[str] = set()
        self.release = threading.Event()
        self.entered = threading.Semaphore(0)
        self.returned: Counter[str] = Counter()
        HeldStore.opened.append(self)

    def _hold(self, hook: str) -> None:
        if hook in self.held:
            self.entered.release()
            assert self.release.wait(BOUND)

    def batch_exists(self, keys: Sequence[str]) -> int:
        self._hold("batch_exists")
        return next((i for i, key in enumerate(keys) if key not in self.pages), len(keys))

    def batch_get(self, keys: Sequence[str], pages: Sequence[Any]) -> list[Outcome]:
        self._hold("batch_get")
        outcomes = []
        for key, page in zip(keys, pages, strict=True):
            data = self.pages.get(key)
            for buffer in page if data is not None else ():
                buffer[:], data = data[: len(buffer)], data[len(buffer) :]
            outcomes.append(Outcome.MISS if data is None else Outcome.HIT)
        self.returned["batch_get"] += 1
        return outcomes

    def batch_set(self, keys: Sequence[str], pages: Sequence[Any]) -> list[Outcome]:
        self._hold("batch_set")
        self.pages.update((key, b"".join(page)) for key, page in zip(keys, pages, strict=True))
        return [Outcome.STORED] * len(keys)

    def close(self) -> None:
        self.release.set()
