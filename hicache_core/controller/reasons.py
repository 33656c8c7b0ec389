"""Why a token that might have come from a cache was computed again: one vocabulary for reports and ledger."""

from __future__ import annotations

from enum import Enum


class Tier(str, Enum):
    """Where a token's KV came from. `str()` gives the value."""

    DEVICE = "device"
    HOST = "host"
    STORAGE = "storage"

    def __str__(self) -> str:
        return self.value


class Reason(str, Enum):
    """What ended a run of hits. `str()` gives the value; the first group is what a store answered."""

    MISS = "miss"
    CORRUPT = "corrupt"
    FOREIGN = "foreign"
    POISONED = "poisoned"
    REJECTED = "rejected"
    UNAVAILABLE = "unavailable"
    BREAKER_OPEN = "breaker_open"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"

    NEVER_STORED = "never_stored"
    """The store has no such page because writing it failed for good (or it was evicted before it was written)."""
    NO_STORAGE = "no_storage"
    """No L3 is attached."""
    NEGATIVE_CACHE = "negative_cache"
    """A miss of a moment ago was believed; L3 was not asked."""
    RATE_LIMITED = "rate_limited"
    """Prefetches held their share of the host pool already."""
    BELOW_THRESHOLD = "below_threshold"
    """Too few tokens to be worth an I/O."""
    DEADLINE = "deadline"
    """The stop policy ended the wait before the pages had come."""
    HOST_CAPACITY = "host_capacity"
    """No room in L2, even after evicting."""
    DEVICE_CAPACITY = "device_capacity"
    """No room in L1, even after evicting."""
    EVICTED = "evicted"
    """Was there when it was looked up and was reclaimed before it was used."""
    COVERED = "covered"
    """A nearer tier served the same token in the meantime."""
    LOAD_FAILED = "load_failed"
    """The copy into L1 failed."""
    ABORTED = "aborted"
    """The request was aborted."""

    def __str__(self) -> str:
        return self.value


STORE_ANSWERS = {
    reason.value: reason
    for reason in (
        Reason.MISS,
        Reason.CORRUPT,
        Reason.FOREIGN,
        Reason.POISONED,
        Reason.REJECTED,
        Reason.UNAVAILABLE,
        Reason.BREAKER_OPEN,
        Reason.TIMEOUT,
        Reason.CANCELLED,
    )
}


def store_reason(word: str) -> Reason:
    """The reason for a word that a session used; an unknown word is `unavailable`."""
    return STORE_ANSWERS.get(word, Reason.UNAVAILABLE)
