"""Pages that a session found to be wrong: which it avoids, and which it may heal."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

import msgspec

from hicache_core.clock import Clock

HEALS_AT_LEAST = 16
HEALS_PER_PAGE_READ = 0.001
WINDOW_SECONDS = 60.0
READ_PAUSE_SECONDS = 60.0
REMEMBERED = 1 << 16
"""Keys remembered of each kind; beyond that the oldest is forgotten and would be found again when read."""


class DamageStatus(msgspec.Struct, frozen=True):
    """Damage as known to a session. heals_left: of the current minute."""

    poisoned: int
    foreign: int
    heals_this_minute: int
    heals_left: int
    refused: str


class Damage:
    """Poisoned and foreign keys of a session, and its healing budget. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._poisoned: dict[str, None] = {}
        self._foreign: dict[str, None] = {}
        self._window_start = clock()
        self._pages_read = self._heals = 0
        self._refused = ""

    @property
    def any(self) -> bool:
        """Whether any key is poisoned or foreign; the usual answer is no, and costs nothing."""
        return bool(self._poisoned or self._foreign)

    def poison(self, keys: Iterable[str]) -> None:
        """These keys hold damaged bytes, read twice."""
        self._remember(self._poisoned, keys)

    def estrange(self, keys: Iterable[str]) -> None:
        """These keys hold good pages that are not ours."""
        self._remember(self._foreign, keys)

    def forgive(self, keys: Iterable[str]) -> None:
        """These keys were read well, healed, or deleted."""
        with self._lock:
            for key in keys:
                self._poisoned.pop(key, None)
                self._foreign.pop(key, None)

    def forget(self) -> None:
        """The namespace was cleared."""
        with self._lock:
            self._poisoned.clear()
            self._foreign.clear()

    def is_poisoned(self, key: str) -> bool:
        """Whether the key holds damaged bytes."""
        return key in self._poisoned

    def is_foreign(self, key: str) -> bool:
        """Whether the key holds somebody else's page."""
        return key in self._foreign

    def first_bad(self, keys: Sequence[str]) -> tuple[int, str]:
        """Index of the first key to stop before, and `poisoned` or `foreign`; (len(keys), "") where all are good."""
        poisoned, foreign = self._poisoned, self._foreign
        for i, key in enumerate(keys):
            if key in poisoned:
                return i, "poisoned"
            if key in foreign:
                return i, "foreign"
        return len(keys), ""

    def pages_read(self, count: int) -> None:
        """The budget grows with what was read."""
        with self._lock:
            self._roll()
            self._pages_read += count

    def may_heal(self) -> bool:
        """Take one heal out of this minute's budget; False where it is used up."""
        with self._lock:
            self._roll()
            budget = self._budget()
            if self._heals >= budget:
                self._refused = (
                    f"{self._heals} pages were healed within a minute in which {self._pages_read} were read; "
                    f"nothing further is healed, since memory of this machine may be at fault"
                )
                return False
            self._heals += 1
            return True

    def status(self) -> DamageStatus:
        """A snapshot."""
        with self._lock:
            self._roll()
            left = max(0, self._budget() - self._heals)
            return DamageStatus(len(self._poisoned), len(self._foreign), self._heals, left, self._refused)

    @property
    def refused(self) -> str:
        """Why healing was refused; empty where it was not within this minute."""
        return self._refused

    def _budget(self) -> int:
        return max(HEALS_AT_LEAST, int(self._pages_read * HEALS_PER_PAGE_READ))

    def _roll(self) -> None:
        now = self._clock()
        if now - self._window_start >= WINDOW_SECONDS:
            self._window_start, self._pages_read, self._heals, self._refused = now, 0, 0, ""

    def _remember(self, known: dict[str, None], keys: Iterable[str]) -> None:
        with self._lock:
            for key in keys:
                known[key] = None
            while len(known) > REMEMBERED:
                known.pop(next(iter(known)))
