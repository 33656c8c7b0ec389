"""Rank agreement: every rank acts on the same number, and asks for it equally often.

The ranks of one model hold equal trees and take equal decisions in equal order. Whatever differs by rank (which
copy has finished, how many pages came, how much memory is quarantined) is agreed on before anyone acts:
the minimum of what is done, the maximum of who wants to stop. The number of collectives never depends on local
data; a vector's length depends only on what is in flight, which all ranks agree on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from hicache_core.errors import MisuseError


class RankSync(Protocol):
    """Collectives over the ranks of one model. Called on the engine's thread, in lock step."""

    rank: int
    size: int

    def minimum(self, values: Sequence[int]) -> list[int]:
        """Element-wise minimum over the ranks."""

    def maximum(self, values: Sequence[int]) -> list[int]:
        """Element-wise maximum over the ranks."""


class SingleRank:
    """One rank agrees with itself."""

    rank = 0
    size = 1

    def minimum(self, values: Sequence[int]) -> list[int]:
        """The values themselves."""
        return list(values)

    def maximum(self, values: Sequence[int]) -> list[int]:
        """The values themselves."""
        return list(values)


class InProcessRanks:
    """Ranks that are threads of one process; for tests and for engines that run so.

    A rank that asks another question than the others (other operation, other length) is an error on all of
    them that names both questions; one that does not come within `timeout` seconds, too.
    """

    def __init__(self, size: int, *, timeout: float = 30.0) -> None:
        self.size, self.timeout = size, timeout
        self.calls = 0
        """Collectives done so far."""
        self._barrier = threading.Barrier(size)
        self._asked: list[tuple[str, tuple[int, ...]]] = [("", ())] * size

    def member(self, rank: int) -> InProcessRank:
        """The view of one rank."""
        return InProcessRank(self, rank)

    def reduce(self, rank: int, name: str, values: Sequence[int], pick: Callable[[Sequence[int]], int]) -> list[int]:
        """Meet the other ranks; the element-wise `pick` of what all have brought."""
        self._asked[rank] = (name, tuple(values))
        self._meet()
        asked = list(self._asked)
        if rank == 0:
            self.calls += 1
        self._meet()
        questions = {(word, len(brought)) for word, brought in asked}
        if len(questions) > 1:
            raise MisuseError(f"ranks left the lock step: {sorted(questions)}")
        return [pick(column) for column in zip(*(brought for _, brought in asked), strict=True)]

    def _meet(self) -> None:
        try:
            self._barrier.wait(self.timeout)
        except threading.BrokenBarrierError as error:
            raise MisuseError(f"a rank did not come to a collective within {self.timeout} s") from error


class InProcessRank:
    """One member of `InProcessRanks`."""

    def __init__(self, group: InProcessRanks, rank: int) -> None:
        self.group, self.rank, self.size = group, rank, group.size

    def minimum(self, values: Sequence[int]) -> list[int]:
        """Element-wise minimum over the ranks; blocks until all have come."""
        return self.group.reduce(self.rank, "minimum", values, min)

    def maximum(self, values: Sequence[int]) -> list[int]:
        """Element-wise maximum over the ranks; blocks until all have come."""
        return self.group.reduce(self.rank, "maximum", values, max)
