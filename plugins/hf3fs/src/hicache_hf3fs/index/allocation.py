"""Giving out slots, and making room for them. Everything here runs inside one write transaction."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

from hicache_hf3fs.index import batch
from hicache_hf3fs.index.interface import FULL, WAIT, Slot

_VICTIMS_AT_ONCE = 64


@dataclass(slots=True)
class Asker:
    """Who wants slots, and how long it holds them."""

    owner: str
    until: float | None
    may_hollow: bool
    """Whether it can give the blocks of a slot back to the file system."""


@dataclass(slots=True)
class Allocation:
    """Slots for one batch."""

    connection: sqlite3.Connection
    asker: Asker
    max_size: int | None
    hollow: list[Slot] = field(default_factory=list)
    """Slots of other classes that the asker is to empty."""
    evicted: int = 0

    def allocate(self, sizes: Sequence[int]) -> list[int]:
        """A slot, WAIT or FULL for each page, in order: of a batch that does not fit the start is stored."""
        slots: list[int] = []
        for slot_bytes, group in groupby(sizes):
            wanted = len(list(group))
            got = self._of_class(slot_bytes, wanted)
            slots += got + [FULL] * (wanted - len(got))
        self._tell_readers()
        return slots

    def shrink(self, limit: int) -> list[Slot]:
        """At most `limit` slots whose blocks are above the cap: free ones first, then those of evicted pages."""
        excess = self._held_bytes() - (self.max_size or 0)
        emptied = self._spare_of_others(0, excess)
        while emptied < excess and len(self.hollow) < limit:
            victims = self._victims(0, _VICTIMS_AT_ONCE)
            if not victims:
                break
            for page, size, slot in victims:
                if emptied < excess:
                    self.connection.execute("DELETE FROM pages WHERE id = ?", (page,))
                    self._empty(size, [slot])
                    emptied, self.evicted = emptied + size, self.evicted + 1
        self._tell_readers()
        return self.hollow

    def _tell_readers(self) -> None:
        if self.evicted:
            self.connection.execute("UPDATE facts SET value = value + 1 WHERE name = 'epoch'")

    def _of_class(self, slot_bytes: int, wanted: int) -> list[int]:
        """At most `wanted` slots or WAITs; the slots ascending, so that neighbours can be written in one go."""
        if self.max_size is not None and slot_bytes > self.max_size:
            return []
        slots = self._take_free(slot_bytes, 0, wanted)
        missing = wanted - len(slots)
        if missing:
            slots += self._fresh(slot_bytes, min(missing, self._room() // slot_bytes) if self.max_size else missing)
            missing = wanted - len(slots)
        waiting = 0
        if missing:
            evicted, emptied = self._make_room(slot_bytes, missing)
            slots += evicted
            waiting = min(missing - len(evicted), (self._room() + emptied) // slot_bytes)
        self._hold(slot_bytes, slots)
        return [*sorted(slots), *[WAIT] * waiting]

    def _room(self) -> int:
        """Bytes below the cap that no slot holds. Only where there is a cap."""
        return max(0, (self.max_size or 0) - self._held_bytes())

    def _held_bytes(self) -> int:
        [(held,)] = self.connection.execute("SELECT coalesce(sum(slot_bytes * solid), 0) FROM classes")
        return int(held)

    def _take_free(self, slot_bytes: int, hollow: int, most: int) -> list[int]:
        [(text,)] = self.connection.execute(
            "SELECT json_group_array(slot) FROM "
            "(SELECT slot FROM free WHERE slot_bytes = ? AND hollow = ? ORDER BY slot LIMIT ?)",
            (slot_bytes, hollow, most),
        )
        slots = batch.integers(text)
        if slots:  # they are the lowest ones, so all up to the last of them
            self.connection.execute(
                "DELETE FROM free WHERE slot_bytes = ? AND hollow = ? AND slot <= ?", (slot_bytes, hollow, max(slots))
            )
        return slots

    def _fresh(self, slot_bytes: int, count: int) -> list[int]:
        """Slots that hold no blocks yet: emptied ones first, then new ones at the end of the file."""
        if count <= 0:
            return []
        slots = self._take_free(slot_bytes, 1, count)
        new = count - len(slots)
        self.connection.execute(
            "INSERT INTO classes VALUES (?, ?, ?) ON CONFLICT(slot_bytes) DO UPDATE "
            "SET extent = extent + excluded.extent, solid = solid + excluded.solid",
            (slot_bytes, new, count),
        )
        [(extent,)] = self.connection.execute("SELECT extent FROM classes WHERE slot_bytes = ?", (slot_bytes,))
        return [*slots, *range(extent - new, extent)]

    def _make_room(self, slot_bytes: int, missing: int) -> tuple[list[int], int]:
        """Evict the pages longest unused: slots of this class for us, and the bytes of others that are emptied."""
        slots: list[int] = []
        emptied = self._spare_of_others(slot_bytes, missing * slot_bytes - self._room())
        room = self._room() + emptied
        while len(slots) + room // slot_bytes < missing:
            victims = self._victims(slot_bytes, min(_VICTIMS_AT_ONCE, missing))
            if not victims:
                break
            gone = []
            for page, size, slot in victims:
                if len(slots) + room // slot_bytes >= missing:
                    break
                gone.append(page)
                if size == slot_bytes:
                    slots.append(slot)
                else:
                    self._empty(size, [slot])
                    emptied, room = emptied + size, room + size
            self.connection.execute(batch.DELETE_PAGES, (batch.as_json(gone),))
            self.evicted += len(gone)
        return slots, emptied

    def _victims(self, slot_bytes: int, most: int) -> list[tuple[int, int, int]]:
        """(id, slot_bytes, slot) of the pages longest unused; of our class, where blocks cannot be given back."""
        only = "" if self.asker.may_hollow else "WHERE slot_bytes = :size "
        return self.connection.execute(
            f"SELECT id, slot_bytes, slot FROM pages {only}ORDER BY used, id LIMIT :most",
            {"size": slot_bytes, "most": most},
        ).fetchall()

    def _spare_of_others(self, slot_bytes: int, wanted: int) -> int:
        """Have free slots of other classes emptied, up to so many bytes."""
        total = 0
        if self.asker.may_hollow and wanted > 0:
            rows = self.connection.execute(
                "SELECT slot_bytes, slot FROM free WHERE hollow = 0 AND slot_bytes <> ? LIMIT 4096", (slot_bytes,)
            ).fetchall()
            for size, slot in rows:
                if total >= wanted:
                    break
                self.connection.execute(
                    "DELETE FROM free WHERE slot_bytes = ? AND hollow = 0 AND slot = ?", (size, slot)
                )
                self._empty(size, [slot])
                total += size
        return total

    def _empty(self, slot_bytes: int, slots: list[int]) -> None:
        self._hold(slot_bytes, slots)
        self.hollow += [(slot_bytes, slot) for slot in slots]

    def _hold(self, slot_bytes: int, slots: Sequence[int]) -> None:
        if slots:
            self.connection.execute(
                "INSERT INTO held SELECT ?, value, ?, ? FROM json_each(?)",
                (slot_bytes, self.asker.owner, self.asker.until, batch.as_json(slots)),
            )


def renew(connection: sqlite3.Connection, ids: Sequence[int]) -> None:
    """These pages were used now."""
    now = time.time()
    connection.executemany("UPDATE pages SET used = ? WHERE id = ?", [(now, page) for page in ids])
