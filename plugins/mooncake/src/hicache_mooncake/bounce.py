"""How pages are cut into calls of the SDK, and memory through which they go where they cannot go straight.

* Over TCP every part of an object is a transfer of its own, and the SDK refuses more than 4,096 that wait for one
  peer: a page of many small parts is gathered into one, and a call carries a limited number of parts.
* Standalone storage sees only the memory that it shares, and devices that read memory themselves (RDMA) only what is
  registered: parts that lie elsewhere go through registered memory.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from hicache_core.storage.lender import Lender
from hicache_core.storage.lent_memory import Extent
from hicache_core.storage.staging import HOLDS_THE_GIL_BELOW
from hicache_core.types import Outcome
from hicache_mooncake.objects import Objects

ARENAS = 4
CALL_PARTS = 1024
"""Parts in one call: with two workers per direction the SDK's queue of one peer never overflows."""
PAGE_PARTS = 8
"""A page of more parts is gathered."""
_ALIGNMENT = 64

Covers: TypeAlias = "Callable[[int, int], bool]"
Move: TypeAlias = "Callable[[int, int, Objects], list[Outcome]]"
"""(lo, hi, objects lo … hi - 1) → their outcomes."""

_small_move: Any = ctypes.PyDLL(None).memmove
"""Keeps the GIL: giving it up costs more than a small copy."""
_small_move.argtypes, _small_move.restype = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t), ctypes.c_void_p


@dataclass(slots=True)
class _Need:
    """What one object takes: bytes of an arena (0: it goes straight), parts of a call, gathered into one or not."""

    nbytes: int
    parts: int
    gathered: bool


@dataclass(slots=True)
class _Copy:
    """A part that is moved: its place in the arena, where it lies really, its bytes."""

    place: int
    origin: int
    size: int

    def run(self, *, reading: bool) -> None:
        target, source = (self.origin, self.place) if reading else (self.place, self.origin)
        (_small_move if self.size < HOLDS_THE_GIL_BELOW else ctypes.memmove)(target, source, self.size)


class Bounce:
    """memory: registered. covers: whether an extent lies in registered memory; None: any memory will do.

    Each call that needs it holds one of a few arenas. Thread-safe.
    """

    def __init__(self, memory: Extent, covers: Covers | None) -> None:
        start, nbytes = memory
        self.arena_bytes = nbytes // ARENAS // _ALIGNMENT * _ALIGNMENT
        self._arenas = Lender([start + number * self.arena_bytes for number in range(ARENAS)])
        self._covers = covers

    def run(self, objects: Objects, deadline: float | None, move: Move, *, reading: bool) -> list[Outcome]:
        """`move` all of them (at least one), in as many calls as it takes.

        reading: copy back what was a HIT; else copy there first. REJECTED: a page that needs an arena and is larger.
        TIMEOUT: no arena was free before the deadline.
        """
        count, most = len(objects.ptrs), max(map(len, objects.ptrs))
        if self._covers is None and most <= PAGE_PARTS:
            return self._straight(objects, count, max(1, CALL_PARTS // most), move)
        needs = [self._need(*pair) for pair in zip(objects.ptrs, objects.sizes, strict=True)]
        if not any(need.nbytes for need in needs):
            return self._grouped(objects, needs, 0, move, reading=reading)
        with self._arenas.borrow(deadline) as arena:
            if arena is None:
                return [Outcome.TIMEOUT] * count
            return self._grouped(objects, needs, arena, move, reading=reading)

    def _straight(self, objects: Objects, count: int, step: int, move: Move) -> list[Outcome]:
        if count <= step:
            return move(0, count, objects)
        outcomes: list[Outcome] = []
        for lo in range(0, count, step):
            hi = min(count, lo + step)
            outcomes += move(lo, hi, objects.take(range(lo, hi)))
        return outcomes

    def _grouped(
        self, objects: Objects, needs: Sequence[_Need], arena: int, move: Move, *, reading: bool
    ) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for lo, hi in self._groups(needs):
            if needs[lo].nbytes > self.arena_bytes:
                outcomes.append(Outcome.REJECTED)
                continue
            part, copies = self._placed(objects.take(range(lo, hi)), needs[lo:hi], arena)
            if not reading:
                _run(copies, reading=False)
            answer = move(lo, hi, part)
            if reading:
                _run(
                    [own for own, outcome in zip(copies, answer, strict=True) if outcome is Outcome.HIT], reading=True
                )
            outcomes += answer
        return outcomes

    def _need(self, ptrs: Sequence[int], sizes: Sequence[int]) -> _Need:
        total = sum(sizes)
        if len(ptrs) > PAGE_PARTS and total <= self.arena_bytes:
            return _Need(_padded(total), 1, gathered=True)
        if self._covers is None:
            return _Need(0, len(ptrs), gathered=False)
        outside = sum(_padded(size) for ptr, size in zip(ptrs, sizes, strict=True) if not self._covers(ptr, size))
        return _Need(outside, len(ptrs), gathered=False)

    def _groups(self, needs: Sequence[_Need]) -> Iterator[tuple[int, int]]:
        """Runs of objects that fit an arena and a call together; one that never fits stands alone."""
        lo, used, parts = 0, 0, 0
        for hi, need in enumerate(needs):
            if hi > lo and (used + need.nbytes > self.arena_bytes or parts + need.parts > CALL_PARTS):
                yield lo, hi
                lo, used, parts = hi, 0, 0
            used, parts = used + need.nbytes, parts + need.parts
        yield lo, len(needs)

    def _placed(self, objects: Objects, needs: Sequence[_Need], arena: int) -> tuple[Objects, list[list[_Copy]]]:
        """The objects with places in the arena for what does not go straight, and the copies of each."""
        rows, lengths, copies = [], [], []
        for ptrs, sizes, total, need in zip(objects.ptrs, objects.sizes, objects.totals, needs, strict=True):
            moved: list[_Copy] = []
            if need.gathered:
                at = arena
                for ptr, size in zip(ptrs, sizes, strict=True):
                    moved.append(_Copy(at, ptr, size))
                    at += size
                rows.append([arena])
                lengths.append([total])
                arena += need.nbytes
            elif not need.nbytes:
                rows.append(ptrs)
                lengths.append(sizes)
            else:
                row, arena = self._row(ptrs, sizes, arena, moved)
                rows.append(row)
                lengths.append(sizes)
            copies.append(moved)
        return Objects(rows, lengths, objects.totals), copies

    def _row(
        self, ptrs: Sequence[int], sizes: Sequence[int], arena: int, moved: list[_Copy]
    ) -> tuple[list[int], int]:
        row = []
        for ptr, size in zip(ptrs, sizes, strict=True):
            if self._covers is None or self._covers(ptr, size):
                row.append(ptr)
                continue
            row.append(arena)
            moved.append(_Copy(arena, ptr, size))
            arena += _padded(size)
        return row, arena


def _run(copies: Sequence[Sequence[_Copy]], *, reading: bool) -> None:
    for of_one in copies:
        for copy in of_one:
            copy.run(reading=reading)


def _padded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
