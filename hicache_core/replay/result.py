"""What a replay found."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec


class ReplayResult(msgspec.Struct):
    """Pages unless a name says otherwise. `as_dict` is what `--json` writes."""

    requests: int = 0
    pages_total: int = 0
    hit_pages_by_tier: dict[str, int] = msgspec.field(default_factory=lambda: {"device": 0, "host": 0, "storage": 0})
    oracle_hit_pages: int = 0
    """What unlimited storage would have served."""
    lost_by_reason: dict[str, int] = msgspec.field(default_factory=dict)
    """Of these, what was not served; prefix_hit_pages + lost - extra = oracle_hit_pages."""
    extra_hit_pages: int = 0
    """Served although no earlier request of this replay had it (the store was not empty)."""
    wrong_pages: int = 0
    checked_pages: int = 0
    undrained_requests: int = 0
    seconds: float = 0.0
    bytes_moved: dict[str, int] = msgspec.field(default_factory=dict)
    ledger: dict[str, Any] = msgspec.field(default_factory=dict)
    counters: dict[str, int] = msgspec.field(default_factory=dict)
    storage: dict[str, Any] | None = None
    settings: dict[str, Any] = msgspec.field(default_factory=dict)

    @property
    def prefix_hit_pages(self) -> int:
        """Pages served by any tier."""
        return sum(self.hit_pages_by_tier.values())

    @property
    def requests_per_second(self) -> float:
        """Requests over the wall time of the replay itself."""
        return self.requests / self.seconds if self.seconds else 0.0

    @property
    def sound(self) -> bool:
        """No wrong page, the ledger balanced, and every page of the oracle accounted for."""
        accounted = self.prefix_hit_pages + sum(self.lost_by_reason.values()) - self.extra_hit_pages
        return not self.wrong_pages and bool(self.ledger.get("balanced")) and accounted == self.oracle_hit_pages

    def lose(self, reason: str, pages: int) -> None:
        """Book pages that the oracle had and no tier served."""
        self.lost_by_reason = dict(Counter(self.lost_by_reason) + Counter({reason: pages}))

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        derived = {
            "prefix_hit_pages": self.prefix_hit_pages,
            "prefix_hit_share": self.prefix_hit_pages / self.pages_total if self.pages_total else 0.0,
            "requests_per_second": round(self.requests_per_second, 1),
            "sound": self.sound,
        }
        found: dict[str, Any] = msgspec.to_builtins(self)
        return {"requests": found.pop("requests"), "pages_total": found.pop("pages_total")} | derived | found
