"""What was moved since SGLang last asked: the lists of its `StorageMetrics`."""

from __future__ import annotations

import threading
from importlib import import_module
from typing import Any

_KEPT = 4096
"""Entries kept while nobody asks."""
_MODULES = ("sglang.srt.observability.metrics_collector", "sglang.srt.metrics.collector")
"""Where StorageMetrics is, newest version first."""


class Traffic:
    """Pages and GB/s of each get and set. Thread-safe; drained when read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pages: dict[str, list[int]] = {"get": [], "set": []}
        self._rates: dict[str, list[float]] = {"get": [], "set": []}

    def add(self, operation: str, good: int, nbytes: int, asked: int, seconds: float) -> None:
        """One call: pages that were moved of those asked for, bytes of all of them, seconds."""
        moved = nbytes * good / asked if asked else 0
        with self._lock:
            if len(self._pages[operation]) < _KEPT:
                self._pages[operation].append(good)
                self._rates[operation].append(moved / 1e9 / seconds if seconds > 0 else 0.0)

    def drain(self) -> dict[str, Any]:
        """The four lists, by SGLang's names; empty from now on."""
        with self._lock:
            pages, rates = self._pages, self._rates
            self._pages = {"get": [], "set": []}
            self._rates = {"get": [], "set": []}
        return {
            "prefetch_pgs": pages["get"],
            "backup_pgs": pages["set"],
            "prefetch_bandwidth": rates["get"],
            "backup_bandwidth": rates["set"],
        }


def metrics_type() -> type[Any] | None:
    """SGLang's StorageMetrics; None where this version has it in neither place."""
    for name in _MODULES:
        try:
            found: type[Any] = import_module(name).StorageMetrics
        except (ImportError, AttributeError):
            continue
        return found
    return None
