"""What a session counted: pages and bytes by operation and outcome, and everything that went wrong.

One lock, taken once per call of up to 128 pages and never held while anything else runs.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

from hicache_core.errors import told
from hicache_core.types import Outcome

RECENT_ERRORS = 16
"""Causes kept for status and doctor; older ones only count."""

_word = attrgetter("_value_")


class StorageLedger:
    """Counters of one session. Thread-safe. Names are those of `as_dict`."""

    def __init__(self, hide: Callable[[str], str] = str) -> None:
        """hide: takes secrets out of a text."""
        self.hide = hide
        self._lock = threading.Lock()
        self._calls: Counter[str] = Counter()
        self._pages: dict[str, Counter[str]] = {}
        self._bytes: Counter[str] = Counter()
        self._events: Counter[str] = Counter()
        self._violations: Counter[str] = Counter()
        self._exceptions: Counter[str] = Counter()
        self._observer_errors: Counter[str] = Counter()
        self._recent: deque[str] = deque(maxlen=RECENT_ERRORS)

    def pages(self, operation: str, outcomes: Sequence[Outcome], nbytes: int = 0) -> None:
        """Count the outcomes that an operation (`get`, `set`, `delete`) gave back, and the bytes it moved."""
        first = outcomes[0] if outcomes else None
        if first is not None and outcomes.count(first) == len(outcomes):
            words: Counter[str] = Counter({first._value_: len(outcomes)})
        else:
            words = Counter(map(_word, outcomes))
        with self._lock:
            self._pages.setdefault(operation, Counter()).update(words)
            self._bytes[operation] += nbytes

    def call(self, hook: str) -> None:
        """Count one call of a hook."""
        with self._lock:
            self._calls[hook] += 1

    def event(self, name: str, count: int = 1) -> None:
        """Count something that is neither a page nor an error: `retries`, `heals`, `abandoned`, …"""
        with self._lock:
            self._events[name] += count

    def exists(self, asked: int, found: int) -> None:
        """Count the keys of a query and the run that was found."""
        with self._lock:
            self._events["exists_asked"] += asked
            self._events["exists_found"] += found

    def violation(self, hook: str, text: str) -> int:
        """Count a result that the contract does not allow; how many of this hook there were."""
        return self._wrong(self._violations, hook, f"{hook}: violation: {self.hide(text)}")

    def exception(self, hook: str, cause: BaseException) -> int:
        """Count an exception of the backend (or of a transform) and keep its cause; how many there were."""
        return self._wrong(self._exceptions, hook, f"{hook}: {self.text_of(cause)}")

    def observer_error(self, hook: str, cause: BaseException) -> int:
        """Count an exception of an observer; how many there were."""
        return self._wrong(self._observer_errors, hook, f"{hook}: observer: {self.text_of(cause)}")

    def text_of(self, error: BaseException) -> str:
        """`Type: text` of an exception, fit to be shown: without the secrets of the store's options."""
        return self.hide(told(error))

    def _wrong(self, counter: Counter[str], hook: str, text: str) -> int:
        with self._lock:
            counter[hook] += 1
            self._recent.append(text)
            return counter[hook]

    def count(self, name: str) -> int:
        """How often an event was counted."""
        with self._lock:
            return self._events[name]

    def outcomes(self, operation: str) -> dict[str, int]:
        """Pages of an operation by outcome."""
        with self._lock:
            return dict(self._pages.get(operation, ()))

    @property
    def recent_errors(self) -> list[str]:
        """The last causes, oldest first."""
        with self._lock:
            return list(self._recent)

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        with self._lock:
            return {
                "calls": dict(self._calls),
                "pages": {operation: dict(words) for operation, words in self._pages.items()},
                "bytes": dict(self._bytes),
                "events": dict(self._events),
                "violations": dict(self._violations),
                "exceptions": dict(self._exceptions),
                "observer_errors": dict(self._observer_errors),
                "recent_errors": list(self._recent),
            }
