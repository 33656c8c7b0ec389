"""Making pages visible and removing them. Everything here runs inside one write transaction."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence

from hicache_hf3fs.index import batch
from hicache_hf3fs.index.interface import EXISTS, FULL, Placed, Slot

_INSERT = "INSERT INTO pages(key, slot_bytes, slot, nbytes, written, used) VALUES (?, ?, ?, ?, ?, ?)"


def publish(connection: sqlite3.Connection, owner: str, placed: Sequence[Placed], *, replace: bool) -> list[int]:
    """See Index.commit. Says again what was done where it is asked again: the answer may have been lost."""
    now = time.time()
    if not replace:
        # Nearly always all are ours and new: two statements for all pages of a size, and nothing to look at.
        connection.execute("SAVEPOINT batch")
        if _publish_all(connection, owner, placed, now):
            connection.execute("RELEASE batch")
            return [0] * len(placed)
        connection.execute("ROLLBACK TO batch")
        connection.execute("RELEASE batch")
    return [_publish_one(connection, owner, one, now, replace=replace) for one in placed]


def _publish_all(connection: sqlite3.Connection, owner: str, placed: Sequence[Placed], now: float) -> bool:
    """Whether every slot was held by us and every key new; else what was done is to be rolled back."""
    sizes: dict[tuple[int, int], dict[str, int]] = {}
    for key, slot_bytes, slot, nbytes in placed:
        sizes.setdefault((slot_bytes, nbytes), {})[key] = slot
    let_go = added = 0
    for (slot_bytes, nbytes), slots in sizes.items():
        let_go += connection.execute(
            "DELETE FROM held WHERE slot_bytes = ? AND owner = ? AND slot IN (SELECT value FROM json_each(?))",
            (slot_bytes, owner, batch.as_json(list(slots.values()))),
        ).rowcount
        added += connection.execute(
            "INSERT INTO pages(key, slot_bytes, slot, nbytes, written, used) "
            "SELECT key, ?, value, ?, ?, ? FROM json_each(?) WHERE true ON CONFLICT(key) DO NOTHING",
            (slot_bytes, nbytes, now, now, batch.as_json(slots)),
        ).rowcount
    return let_go == added == len(placed)


def _publish_one(connection: sqlite3.Connection, owner: str, one: Placed, now: float, *, replace: bool) -> int:
    there = connection.execute("SELECT id, slot_bytes, slot FROM pages WHERE key = ?", (one.key,)).fetchone()
    ours = connection.execute(
        "DELETE FROM held WHERE slot_bytes = ? AND slot = ? AND owner = ?", (one.slot_bytes, one.slot, owner)
    ).rowcount
    if not ours:
        if there is not None and there[1:] == (one.slot_bytes, one.slot):
            return 0
        return FULL if there is None or replace else EXISTS
    if there is not None:
        if not replace:
            free(connection, [(one.slot_bytes, one.slot)])
            return EXISTS
        remove(connection, [there])
    connection.execute(_INSERT, (one.key, one.slot_bytes, one.slot, one.nbytes, now, now))
    return 0


def release(connection: sqlite3.Connection, owner: str, slots: Sequence[Slot]) -> None:
    """Held slots become free ones, if they are this owner's."""
    for slot_bytes, slot in slots:
        if connection.execute(
            "DELETE FROM held WHERE slot_bytes = ? AND slot = ? AND owner = ?", (slot_bytes, slot, owner)
        ).rowcount:
            free(connection, [(slot_bytes, slot)])


def remove(connection: sqlite3.Connection, pages: Sequence[tuple[int, int, int]]) -> None:
    """Remove pages (id, slot_bytes, slot); their slots are free, and readers are told by the epoch."""
    if pages:
        connection.execute(batch.DELETE_PAGES, (batch.as_json([page for page, _, _ in pages]),))
        free(connection, [(slot_bytes, slot) for _, slot_bytes, slot in pages])
        connection.execute("UPDATE facts SET value = value + 1 WHERE name = 'epoch'")


def free(connection: sqlite3.Connection, slots: Sequence[Slot]) -> None:
    """Note slots as free; they may hold blocks."""
    connection.executemany("INSERT INTO free VALUES (?, 0, ?)", slots)


def empty(connection: sqlite3.Connection, owner: str, slots: Sequence[Slot]) -> None:
    """Held slots become free ones that hold no blocks, if they are this owner's."""
    for slot_bytes, slot in slots:
        if connection.execute(
            "DELETE FROM held WHERE slot_bytes = ? AND slot = ? AND owner = ?", (slot_bytes, slot, owner)
        ).rowcount:
            connection.execute("INSERT INTO free VALUES (?, 1, ?)", (slot_bytes, slot))
            connection.execute("UPDATE classes SET solid = solid - 1 WHERE slot_bytes = ?", (slot_bytes,))
