"""Pages for whoever needs them, evicting where they are short. Every rank takes the same number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from hicache_core.controller.state import State
from hicache_core.types import Slots


class Pool(Protocol):
    """What both kinds of pool have."""

    @property
    def available(self) -> int: ...

    def alloc(self, count: int) -> Slots | None: ...


def take(state: State, pool: Pool, pages: int, evict: Callable[[int], int]) -> Slots | None:
    """`pages` slots, or None where eviction does not make room for them.

    What is free may differ by rank (a call of L3 that has not returned holds pages on one rank only); how much is
    evicted must not, so all go by the least that any has.
    """
    if pages <= 0:
        return pool.alloc(0)
    short = pages - state.sync.minimum([pool.available])[0]
    if short > 0:
        evict(short)
        if state.sync.minimum([pool.available])[0] < pages:
            return None
    return pool.alloc(pages)


def take_some(state: State, pool: Pool, pages: int, least: int, evict: Callable[[int], int]) -> Slots | None:
    """As many of `pages` slots as there are, at least `least`; None where there are fewer."""
    slots = take(state, pool, pages, evict)
    if slots is not None:
        return slots
    fit = state.sync.minimum([pool.available])[0]
    return pool.alloc(fit) if fit >= max(least, 1) else None
