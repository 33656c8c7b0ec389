"""Registered memory through which parts of pages go that do not lie in registered memory themselves.

Only where the SDK insists: standalone storage (its client sees shared memory only) and devices that read memory
themselves (RDMA). Over TCP any memory will do.
"""

from __future__ import annotations

import ctypes
import queue
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from hicache_core.types import Outcome
from hicache_mooncake.memory import Extent
from hicache_mooncake.objects import Objects

ARENAS = 4
_ALIGNMENT = 64
_WAIT_WITHOUT_DEADLINE = 30.0


class Bounce:
    """memory: registered. covers: whether an extent needs no bounce. Each call holds one of a few arenas."""

    def __init__(self, memory: Extent, covers: Callable[[int, int], bool]) -> None:
        start, nbytes = memory
        self.arena_bytes = nbytes // ARENAS // _ALIGNMENT * _ALIGNMENT
        self._free: queue.LifoQueue[int] = queue.LifoQueue()
        for number in range(ARENAS):
            self._free.put(start + number * self.arena_bytes)
        self._covers = covers

    def run(
        self,
        objects: Objects,
        deadline: float | None,
        move: Callable[[int, int, Objects], list[Outcome]],
        *,
        reading: bool,
    ) -> list[Outcome]:
        """move(lo, hi, objects lo … hi - 1 in registered memory), as often as the arena asks for; all outcomes.

        reading: copy back what was a HIT; else copy there first. REJECTED: a page larger than an arena. TIMEOUT: no
        arena was free before the deadline.
        """
        outside = [
            sum(_padded(size) for ptr, size in zip(ptrs, sizes, strict=True) if not self._covers(ptr, size))
            for ptrs, sizes in zip(objects.ptrs, objects.sizes, strict=True)
        ]
        if not any(outside):
            return move(0, len(outside), objects)
        outcomes: list[Outcome] = []
        with self._arena(deadline) as arena:
            if arena is None:
                return [Outcome.TIMEOUT] * len(outside)
            for lo, hi in self._groups(outside):
                if outside[lo] > self.arena_bytes:
                    outcomes.append(Outcome.REJECTED)
                    continue
                part, pairs = self._moved(objects.take(range(lo, hi)), arena)
                if not reading:
                    for own, theirs, size in (pair for pairs_of_one in pairs for pair in pairs_of_one):
                        ctypes.memmove(own, theirs, size)
                answer = move(lo, hi, part)
                if reading:
                    for outcome, pairs_of_one in zip(answer, pairs, strict=True):
                        for own, theirs, size in pairs_of_one if outcome is Outcome.HIT else ():
                            ctypes.memmove(theirs, own, size)
                outcomes += answer
        return outcomes

    def _groups(self, outside: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Runs of objects whose outside parts fit an arena together; one that never fits stands alone."""
        lo, used = 0, 0
        for hi, need in enumerate(outside):
            if hi > lo and used + need > self.arena_bytes:
                yield lo, hi
                lo, used = hi, 0
            used += need
        if lo < len(outside):
            yield lo, len(outside)

    def _moved(self, objects: Objects, arena: int) -> tuple[Objects, list[list[tuple[int, int, int]]]]:
        """The objects with places in the arena for what lies outside, and (place, original, size) of these."""
        rows, pairs = [], []
        for ptrs, sizes in zip(objects.ptrs, objects.sizes, strict=True):
            row, moved = [], []
            for ptr, size in zip(ptrs, sizes, strict=True):
                if self._covers(ptr, size):
                    row.append(ptr)
                else:
                    row.append(arena)
                    moved.append((arena, ptr, size))
                    arena += _padded(size)
            rows.append(row)
            pairs.append(moved)
        return Objects(rows, objects.sizes, objects.totals), pairs

    @contextmanager
    def _arena(self, deadline: float | None) -> Iterator[int | None]:
        wait = _WAIT_WITHOUT_DEADLINE if deadline is None else deadline - time.monotonic()
        try:
            arena = self._free.get(timeout=max(0.001, wait))
        except queue.Empty:
            yield None
            return
        try:
            yield arena
        finally:
            self._free.put(arena)


def _padded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
