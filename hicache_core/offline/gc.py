"""Choose what may go from a store, and remove it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from hicache_core.errors import ConfigError
from hicache_core.offline.raw import RawStore, StoredObject
from hicache_core.offline.verify import verify
from hicache_core.types import BATCH_PAGES, Outcome

_AGE = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def parse_age(text: str) -> float:
    """'30d' -> seconds. Units: s, m, h, d, w.

    Raises:
        ConfigError: the text is no age.
    """
    found = _AGE.fullmatch(text.strip())
    if found is None:
        raise ConfigError(f"{text!r} is no age; write a number and one of s, m, h, d, w, as in 30d")
    return float(found.group(1)) * _SECONDS[found.group(2)]


@dataclass(frozen=True, slots=True)
class GcRule:
    """What goes. An object goes when any of the rules that are set names it."""

    namespaces: frozenset[str] = frozenset()
    """These namespaces whole."""
    older_than: float | None = None
    """Seconds since the object's mtime."""
    corrupt: bool = False
    """Objects that do not verify (every object is read). Where the object alone does not prove it (no seal, a MAC
    that does not fit), only if another of its namespace verifies: else it is the reader that lacks something."""
    mac_key: bytes | None = None
    """The key of seals with a MAC."""

    def __bool__(self) -> bool:
        return bool(self.namespaces or self.corrupt or self.older_than is not None)


@dataclass(slots=True)
class GcResult:
    """What a collection found and did."""

    scanned: int = 0
    chosen: int = 0
    chosen_bytes: int = 0
    removed: int = 0
    failed: list[str] = field(default_factory=list)
    """Keys that the store would not remove."""
    undecided: int = 0
    """Objects that look damaged and stay, since nothing in their namespace verifies, or they changed meanwhile."""


def choose(
    store: RawStore, objects: Iterable[StoredObject], rule: GcRule, now: float, result: GcResult
) -> Iterator[StoredObject]:
    """The objects that the rule names. now: seconds since the epoch. Counts `undecided`."""
    doubtful: list[StoredObject] = []
    sound: set[str] = set()
    """Namespaces of which this reader has verified an object."""
    for stored in objects:
        named = stored.namespace in rule.namespaces
        old = rule.older_than is not None and now - stored.mtime > rule.older_than
        if named or old:
            yield stored
        elif rule.corrupt:
            verdict = next(verify(store, [stored], mac_key=rule.mac_key))
            if verdict.outcome is Outcome.HIT:
                sound.add(stored.namespace)
            elif verdict.outcome is Outcome.CORRUPT:
                if verdict.certain:
                    yield stored
                else:
                    doubtful.append(stored)
    for stored in doubtful:
        if stored.namespace in sound:
            yield stored
        else:
            result.undecided += 1


def remove(store: RawStore, chosen: Iterable[StoredObject], result: GcResult) -> None:
    """Delete in batches, counting into `result`."""
    batch: list[StoredObject] = []
    for stored in chosen:
        result.chosen += 1
        result.chosen_bytes += stored.nbytes
        batch.append(stored)
        if len(batch) == BATCH_PAGES:
            _remove_batch(store, batch, result)
            batch = []
    if batch:
        _remove_batch(store, batch, result)


def _remove_batch(store: RawStore, batch: list[StoredObject], result: GcResult) -> None:
    outcomes = store.delete([stored.key for stored in batch])
    for stored, outcome in zip(batch, outcomes, strict=True):
        if outcome in (Outcome.HIT, Outcome.MISS):
            result.removed += outcome is Outcome.HIT
        else:
            result.failed.append(stored.key)
