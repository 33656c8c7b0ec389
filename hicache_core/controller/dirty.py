"""Pages that L3 did not take and that are offered again: bounded, with growing pauses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hicache_core.clock import Clock
from hicache_core.controller.sync import RankSync
from hicache_core.tree.node import Node

PAUSES = (0.0, 0.05, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Seconds before each further attempt. The first is made at once: most failures are of one call."""
BREAKER_PAUSE = 0.25
"""Seconds between looks at a breaker that is open; these do not count as attempts."""


@dataclass(slots=True)
class Dirty:
    """Nodes on the path to `end` that L3 lacks, `pages` of them up from its end."""

    end: Node
    pages: int
    attempts: int
    due: float


class DirtyQueue:
    """At most `limit` pages that wait for another attempt. The oldest leave first; so does what failed too often."""

    def __init__(self, limit: int, clock: Clock) -> None:
        self.limit, self._clock = limit, clock
        self._waiting: dict[Node, Dirty] = {}
        self.pages = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, node: Node) -> bool:
        return node in self._waiting

    @property
    def next_due(self) -> float | None:
        """When the next attempt is due, on the clock; None where nothing waits."""
        return min((entry.due for entry in self._waiting.values()), default=None)

    def add(self, end: Node, pages: int, attempts: int, *, blocked: bool = False) -> list[Dirty]:
        """Let these pages wait; returns entries that are given up (this one, if it failed too often).

        attempts: made so far. blocked: the breaker refused them, which is no attempt.
        """
        given_up = self.remove(end)
        if given_up is not None:
            pages, attempts = max(pages, given_up.pages), max(attempts, given_up.attempts)
        if attempts > len(PAUSES):
            return [Dirty(end, pages, attempts, 0.0)]
        pause = BREAKER_PAUSE if blocked else PAUSES[max(attempts - 1, 0)]
        self._waiting[end] = Dirty(end, pages, attempts, self._clock() + pause)
        self.pages += pages
        return list(self._overflow())

    def remove(self, end: Node) -> Dirty | None:
        """Forget an entry."""
        entry = self._waiting.pop(end, None)
        if entry is not None:
            self.pages -= entry.pages
        return entry

    def take_due(self, sync: RankSync) -> list[Dirty]:
        """Entries whose time has come on every rank; they leave the queue."""
        if not self._waiting:
            return []
        now = self._clock()
        entries = list(self._waiting.values())
        due = sync.minimum([int(entry.due <= now) for entry in entries])
        taken = [entry for entry, agreed in zip(entries, due, strict=True) if agreed]
        for entry in taken:
            self.remove(entry.end)
        return taken

    def clear(self) -> list[Dirty]:
        """Forget everything; returns what there was."""
        entries = list(self._waiting.values())
        self._waiting.clear()
        self.pages = 0
        return entries

    def _overflow(self) -> Iterator[Dirty]:
        while self.pages > self.limit:
            entry = self.remove(next(iter(self._waiting)))
            assert entry is not None
            yield entry
