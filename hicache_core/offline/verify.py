"""Read every page of a store and judge it by its own seal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from hicache_core.offline.raw import RawStore, StoredObject
from hicache_core.seal import inspect
from hicache_core.types import Outcome


class Verdict(msgspec.Struct, frozen=True):
    """What verification found of one object. outcome: hit, miss, corrupt, foreign or unavailable.

    certain: False for one that is corrupt to this reader and may be good to its owner (see SealReport).
    """

    key: str
    nbytes: int
    outcome: Outcome
    reason: str
    certain: bool = True


class Tally(msgspec.Struct):
    """Verdicts counted. `bad` are corrupt pages and pages sealed for another key or namespace than they lie under."""

    pages: int = 0
    nbytes: int = 0
    intact: int = 0
    corrupt: int = 0
    foreign: int = 0
    gone: int = 0
    """Listed, and removed by someone before it was read."""
    unreadable: int = 0

    def add(self, verdict: Verdict) -> None:
        """Count one verdict."""
        self.pages += 1
        self.nbytes += verdict.nbytes
        match verdict.outcome:
            case Outcome.HIT:
                self.intact += 1
            case Outcome.CORRUPT:
                self.corrupt += 1
            case Outcome.FOREIGN:
                self.foreign += 1
            case Outcome.MISS:
                self.gone += 1
            case _:
                self.unreadable += 1

    @property
    def clean(self) -> bool:
        """Whether every page that was there could be read and is what its key says."""
        return not (self.corrupt or self.foreign or self.unreadable)


def verify(store: RawStore, objects: Iterable[StoredObject], *, mac_key: bytes | None = None) -> Iterator[Verdict]:
    """One verdict per object, in order. One object's bytes are in memory at a time."""
    for stored in objects:
        outcome, data = store.read(stored)
        reason, certain = "" if outcome else _WHY.get(outcome, outcome.value), False
        if outcome is Outcome.HIT:
            report = inspect(stored.key, data, mac_key=mac_key)
            outcome, reason, certain = report.outcome, report.reason, report.certain
        yield Verdict(stored.key, stored.nbytes, outcome, reason, certain)


_WHY = {
    Outcome.MISS: "removed since it was listed",
    Outcome.REJECTED: "larger than the memory that is there to read it",
    Outcome.CORRUPT: "its length changed since it was listed, or the store says that it is damaged",
}
