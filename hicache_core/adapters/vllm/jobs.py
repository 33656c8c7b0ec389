"""Transfer jobs on their way through the tier, and how they end."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from hicache_core.storage import Handle
from hicache_core.types import Outcome


@dataclass(slots=True, eq=False)
class Job:
    """One TransferJob. keys[i] lies in, or goes to, row chunks[i] of the primary view. All of it is the courier's."""

    job_id: int
    keys: list[bytes]
    chunks: list[int]
    promotion: bool
    begun: float = 0.0
    """time.monotonic() when the session got it."""
    parts: int = 0
    """Parts that have not ended."""
    unanswered: int = 0
    """Parts without an answer of the store."""
    handles: list[Handle[list[Outcome]]] = field(default_factory=list)
    ended: bool = False
    good: list[bytes] = field(default_factory=list)
    outcomes: Counter[Outcome] = field(default_factory=Counter)


@dataclass(slots=True, eq=False)
class Part:
    """The keys of a job that are in one pool. waits: for what (answer, rows free) before it has ended."""

    job: Job
    keys: list[bytes]
    waits: int


@dataclass(frozen=True, slots=True)
class Finished:
    """What the scheduler is told of a job. good, bad: its keys by success."""

    job: Job
    good: list[bytes]
    bad: list[bytes]
    seconds: float


@dataclass(frozen=True, slots=True)
class Answer:
    """What a query found, key by key."""

    keys: list[bytes]
    found: list[bool]
