"""What the tier adds to vLLM's metrics."""

from __future__ import annotations

from collections import Counter
from typing import Any

PAGES = "vllm:kv_offload_hicache_pages"
LOOKUPS = "vllm:kv_offload_hicache_lookups"
BREAKERS = "vllm:kv_offload_hicache_breaker_open"


def definitions() -> dict[str, Any]:
    """Name to metadata, as `build_metric_definitions` gives it."""
    from vllm.v1.kv_offload.base import (
        OffloadingCounterMetadata,
        OffloadingGaugeMetadata,
    )

    return {
        PAGES: OffloadingCounterMetadata(
            documentation="Chunks moved by the hicache tier, by store, operation (load, store) and outcome (hit, "
            "stored, exists, miss, corrupt, foreign, rejected, unavailable, timeout, cancelled).",
            labelnames=("backend", "operation", "outcome"),
        ),
        LOOKUPS: OffloadingCounterMetadata(
            documentation="Chunks that the hicache tier asked its store for, by store and answer (hit, miss).",
            labelnames=("backend", "answer"),
        ),
        BREAKERS: OffloadingGaugeMetadata(
            documentation="1 while the hicache tier does not ask its store, since that kept failing, by store and "
            "direction (read, write).",
            labelnames=("backend", "direction"),
        ),
    }


class Counts:
    """Counted since the last `take`. Owned by whoever holds the manager's lock."""

    def __init__(self, backend: str) -> None:
        self._backend = backend
        self._counts: Counter[tuple[str, tuple[str, ...]]] = Counter()

    def pages(self, operation: str, outcome: str, count: int) -> None:
        """So many pages of a job ended so."""
        self._counts[PAGES, (self._backend, operation, outcome)] += count

    def lookups(self, answer: str, count: int) -> None:
        """So many keys were answered so."""
        self._counts[LOOKUPS, (self._backend, answer)] += count

    def take(self, breakers: dict[str, bool]) -> Any:
        """vLLM's stats object with everything since the last time; None where nothing happened."""
        if not self._counts:
            return None
        from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import (
            OffloadingConnectorStats,
        )

        stats = OffloadingConnectorStats()
        for (name, labels), count in self._counts.items():
            stats.increase_counter(name, count, labels)
        for direction, is_open in breakers.items():
            stats.set_gauge(BREAKERS, int(is_open), (self._backend, direction))
        self._counts.clear()
        return stats
