"""Making pages visible and removing them. Everything here runs inside one write transaction."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence

from hicache_hf3fs.index.interface import EXISTS, FULL, Placed, Slot

_INSERT = "INSERT INTO pages(key, slot_bytes, slot, nbytes, written, used) VALUES (?, ?, ?, ?, ?, ?)"


def publish(connection: sqlite3.Connection, owner: str, placed: Sequence[Placed], *, replace: bool) -> list[int]:
    """See Index.commit. Says again what was done where it is asked again: the answer may have been lost."""
    now = time.time()
    rows = [(key, slot_bytes, slot, nbytes, now, now) for key, slot_bytes, slot, nbytes in placed]
    if not replace:
        # Nearly always all are ours and new: two statements for the whole batch, and nothing to look at.
        connection.execute("SAVEPOINT batch")
        let_go = connection.executemany(
            "DELETE FROM held WHERE slot_bytes = ? AND slot = ? AND owner = ?",
            [(one.slot_bytes, one.slot, owner) for one in placed],
        ).rowcount
        added = connection.executemany(f"{_INSERT} ON CONFLICT(key) DO NOTHING", rows).rowcount
        if let_go == added == len(placed):
            connection.execute("RELEASE batch")
            return [0] * len(placed)
        connection.execute("ROLLBACK TO batch")
        connection.execute("RELEASE batch")
    return [_publish_one(connection, owner, one, now, replace=replace) for one in placed]


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
        connection.executemany("DELETE FROM pages WHERE id = ?", [(page,) for page, _, _ in pages])
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
