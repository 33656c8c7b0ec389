"""What a store asks of its index, embedded or remote.

A slot is named by the bytes of its size class and its number there: it lies at `number * slot_bytes` of that class's
file. A page becomes visible in three steps: `reserve` gives a slot that nobody else has, the writer fills it,
`commit` notes the page. Only `commit` makes anything readable. What a writer that died had reserved is taken back.
A slot is given away only in the transaction that removes its page and raises the epoch; readers compare the epoch
after they have read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeAlias

import msgspec

from hicache_hf3fs.counters import Totals

SLOT_UNIT = 4096
"""Slots are a multiple of this: no two pages share a block of any file system, or of a client's cache of one."""
STRIPES, STRIPE_SLOTS = 4, 32
"""Slots of one size lie in so many files, this many neighbours at a time: two writers of one file wait for each other
(the kernel locks its inode), and a batch is written by two."""
EXISTS, FULL, WAIT = -1, -2, -3
"""In place of a slot: the key is there; no room for it; ask again when the `hollow` slots have been emptied."""

Slot: TypeAlias = tuple[int, int]
"""(slot_bytes, number)."""


class Row(NamedTuple):
    """Where a page is. id: never given twice, so that as long as it is there, the slot is this page's."""

    id: int
    slot_bytes: int
    slot: int
    nbytes: int
    used: float
    """When it was written or last used, seconds since the epoch."""


class Found(NamedTuple):
    """The answer of a lookup."""

    epoch: int
    """Before the rows were looked up."""
    rows: list[Row | None]


class Reservation(NamedTuple):
    """Slots for a batch."""

    slots: list[int]
    """A slot's number, or EXISTS, FULL, WAIT, one for each wish."""
    hollow: list[Slot]
    """Slots of other size classes whose blocks must be given back to the file system first (`hollowed`)."""
    seconds: float | None
    """How long they are held for us; None: as long as this process lives."""


class Placed(NamedTuple):
    """A page that was written and is to become visible."""

    key: str
    slot_bytes: int
    slot: int
    nbytes: int


class Listed(NamedTuple):
    """A page in a scan."""

    key: str
    nbytes: int
    used: float


class Identity(msgspec.Struct, frozen=True):
    """Who answers."""

    store_id: str
    layout: int


class Index(Protocol):
    """Thread-safe. Every method raises IndexFailure; deadline: time.monotonic(), None: a few seconds."""

    store_id: str

    def lookup(self, keys: Sequence[str], deadline: float | None) -> Found:
        """Where each key's page is, or None."""

    def still(
        self, epoch: int, ids: Sequence[int], used: Sequence[int], deadline: float | None
    ) -> frozenset[int] | None:
        """Which of these rows are still there; None: all, since no slot was given away since `epoch`.

        used: rows whose time of last use is to be renewed.
        """

    def reserve(
        self,
        keys: Sequence[str],
        sizes: Sequence[int],
        *,
        replace: bool,
        may_hollow: bool,
        deadline: float | None,
    ) -> Reservation:
        """A slot of `sizes[i]` bytes for each key (all different), evicting where there is no room."""

    def hollowed(self, slots: Sequence[Slot], deadline: float | None) -> None:
        """These slots hold no blocks any more."""

    def spare(self, limit: int, deadline: float | None) -> list[Slot]:
        """Free slots that still hold blocks, reserved for us, to be emptied and given back by `hollowed`."""

    def excess(self, limit: int, deadline: float | None) -> list[Slot]:
        """Slots that are above the cap (it was lowered), evicted and reserved for us as those of `spare`."""

    def commit(
        self, placed: Sequence[Placed], failed: Sequence[Slot], *, replace: bool, deadline: float | None
    ) -> list[int]:
        """Make pages visible and give slots back, in one step. For each page 0 (stored), EXISTS, or FULL: the
        reservation had run out, the page is not stored."""

    def delete(self, keys: Sequence[str], deadline: float | None) -> list[bool]:
        """Remove pages; whether each was there."""

    def clear(self, namespace: str) -> int:
        """Remove a namespace; how many pages it had."""

    def scan(self, namespace: str | None, after: str | None, limit: int) -> list[Listed]:
        """Pages in the order of their keys, those after `after`."""

    def totals(self) -> Totals:
        """Counts."""

    def close(self, *, ours: bool = True) -> None:
        """Let go. ours False: in a forked child, which must leave the files alone."""


def place(slot: int) -> tuple[int, int]:
    """(number of the file, place in it in slots) of a slot."""
    block, rest = divmod(slot, STRIPE_SLOTS)
    return block % STRIPES, block // STRIPES * STRIPE_SLOTS + rest


def askable(keys: Sequence[str]) -> Sequence[str]:
    """The keys, those that no database takes (lone surrogates) replaced by one that nothing is stored under."""
    return keys if "".join(keys).isascii() else [key if key.isascii() else "" for key in keys]
