"""The index in SQLite: embedded in every process of one node, or behind the service."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec

from hicache_core.errors import OpenError
from hicache_hf3fs.counters import Totals
from hicache_hf3fs.errors import IndexFailure
from hicache_hf3fs.index import batch, publishing, schema
from hicache_hf3fs.index.allocation import Allocation, Asker, renew
from hicache_hf3fs.index.connections import Connections
from hicache_hf3fs.index.interface import EXISTS, Found, Listed, Placed, Reservation, Row, Slot
from hicache_hf3fs.index.owners import LivingOwner, Terms, give_back
from hicache_hf3fs.root import FILE_MODE, Root

_KEYS_AT_ONCE = 512
_LOST_BY_POWER_CUT_SECONDS = 300.0
_LOOKUP = """
    SELECT (SELECT value FROM facts WHERE name = 'epoch'),
      json_group_array(json_array(key, json_array(id, slot_bytes, slot, nbytes, used)))
    FROM pages WHERE key IN (SELECT value FROM json_each(?))"""
_STILL = "SELECT json_group_array(id) FROM pages WHERE id IN (SELECT value FROM json_each(?))"
_rows = msgspec.json.Decoder(list[tuple[str, Row]]).decode


class SqliteIndex:
    """Implements `Index`. Thread-safe; any number of these, in one process or many, may share a database."""

    def __init__(
        self,
        directory: Root,
        *,
        max_size: int | None,
        durable: bool = False,
        forget: bool = True,
        terms: bool = False,
        touch_interval: float = 60.0,
    ) -> None:
        """Open or make it. Raises OpenError.

        durable: a commit survives a power cut. forget: after a reboot, drop the newest pages (their bytes were not
        synced). terms: reservations run out by time, for a service; otherwise with the process that made them.
        touch_interval: seconds in which being offered again does not renew a page's time of last use.
        """
        self._max_size, self._touch_interval = max_size, touch_interval
        with ExitStack() as undo:
            try:
                flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
                os.close(os.open(schema.DATABASE, flags, FILE_MODE, dir_fd=directory.fd))
                self._connections = Connections(os.path.join(directory.path, schema.DATABASE), durable=durable)
                undo.callback(self._connections.close, ours=True)
                with self._connections.writing(None) as connection:
                    batch.check_json(connection)
                    self.store_id = schema.make(connection)
                    if forget:
                        schema.forget_what_a_power_cut_took(connection, _boot_id(), _LOST_BY_POWER_CUT_SECONDS)
                    self._owner: LivingOwner | Terms = Terms() if terms else LivingOwner(directory)
                    undo.callback(self._owner.close, ours=True)
                    self._owner.sweep(connection)
            except (IndexFailure, sqlite3.Error, OSError) as error:
                if isinstance(error, OpenError):
                    raise
                raise OpenError(
                    f"the index in {directory.path} cannot be opened ({error}); it needs a local disk that this user "
                    "can write: name one by index_dir"
                ) from error
            undo.pop_all()
        self._directory = directory
        self._me = self._owner.name if isinstance(self._owner, LivingOwner) else ""

    # -- queries -------------------------------------------------------------------------------------------------

    def lookup(self, keys: Sequence[str], deadline: float | None = None) -> Found:
        """See Index."""
        with self._connections.reading() as connection:
            epoch, text = connection.execute(_LOOKUP, (batch.as_json(keys),)).fetchone()
        found = dict(_rows(text))
        return Found(epoch, [found.get(key) for key in keys])

    def still(
        self, epoch: int, ids: Sequence[int], used: Sequence[int], deadline: float | None = None
    ) -> frozenset[int] | None:
        """See Index."""
        with self._connections.reading() as connection:
            there = None
            if _epoch(connection) != epoch:
                [(text,)] = connection.execute(_STILL, (batch.as_json(ids),))
                there = frozenset(batch.integers(text))
        if used:
            with suppress(IndexFailure), self._connections.writing(deadline) as connection:
                renew(connection, used)  # what was read is good, also where this cannot be noted
        return there

    def scan(self, namespace: str | None, after: str | None, limit: int) -> list[Listed]:
        """See Index."""
        within, values = _within(namespace)
        with self._connections.reading() as connection:
            rows = connection.execute(
                f"SELECT key, nbytes, used FROM pages WHERE key > ? AND {within} ORDER BY key LIMIT ?",
                (after or "", *values, limit),
            )
            return [Listed(*row) for row in rows]

    def totals(self) -> Totals:
        """See Index."""
        with self._connections.reading() as connection:

            def one(sql: str) -> list[int]:
                return list(map(int, connection.execute(sql).fetchone()))

            pages, stored = one("SELECT count(*), coalesce(sum(nbytes), 0) FROM pages")
            classes, slots, held = one(
                "SELECT count(*), coalesce(sum(extent), 0), coalesce(sum(slot_bytes * solid), 0) FROM classes"
            )
            [free] = one("SELECT count(*) FROM free")
            [reserved] = one("SELECT count(*) FROM held")
        return Totals(
            pages=pages,
            bytes_stored=stored,
            bytes_held=held,
            slots=slots,
            slots_free=free,
            slots_reserved=reserved,
            size_classes=classes,
            max_size=self._max_size,
        )

    # -- changes -------------------------------------------------------------------------------------------------

    def reserve(
        self,
        keys: Sequence[str],
        sizes: Sequence[int],
        *,
        replace: bool,
        may_hollow: bool,
        deadline: float | None = None,
        owner: str | None = None,
    ) -> Reservation:
        """See Index."""
        slots = [0] * len(keys)
        there = [] if replace else self.lookup(keys).rows
        for i, row in enumerate(there):
            if row is not None:
                slots[i] = EXISTS
        wanted = [i for i, slot in enumerate(slots) if slot != EXISTS]
        # Whoever offers a page again has just computed it: that is a use. In a batch that needs room all are renewed,
        # since what we are about to call EXISTS must not be evicted for the rest.
        stale = time.time() - (0.0 if wanted and self._max_size else self._touch_interval)
        known = [row.id for row in there if row is not None and row.used <= stale]
        if not wanted and not known:
            return Reservation(slots, [], self._seconds)
        with self._connections.writing(deadline) as connection:
            renew(connection, known)
            until = self._owner.until()
            if wanted and self._is_short(connection, sum(sizes[i] for i in wanted)):
                self._owner.sweep(connection)
            allocation = Allocation(connection, Asker(owner or self._me, until, may_hollow), self._max_size)
            for i, slot in zip(wanted, allocation.allocate([sizes[i] for i in wanted]), strict=True):
                slots[i] = slot
        return Reservation(slots, allocation.hollow, self._seconds)

    def hollowed(self, slots: Sequence[Slot], deadline: float | None = None, owner: str | None = None) -> None:
        """See Index."""
        with self._connections.writing(deadline) as connection:
            publishing.empty(connection, owner or self._me, slots)

    def spare(self, limit: int, deadline: float | None = None, owner: str | None = None) -> list[Slot]:
        """See Index."""
        with self._connections.writing(deadline) as connection:
            rows: list[Slot] = connection.execute(
                "SELECT slot_bytes, slot FROM free WHERE hollow = 0 LIMIT ?", (limit,)
            ).fetchall()
            connection.executemany("DELETE FROM free WHERE slot_bytes = ? AND hollow = 0 AND slot = ?", rows)
            until = self._owner.until()
            connection.executemany(
                "INSERT INTO held VALUES (?, ?, ?, ?)", [(*slot, owner or self._me, until) for slot in rows]
            )
        return rows

    def excess(self, limit: int, deadline: float | None = None, owner: str | None = None) -> list[Slot]:
        """See Index."""
        if self._max_size is None or self.totals().bytes_held <= self._max_size:
            return []
        with self._connections.writing(deadline) as connection:
            asker = Asker(owner or self._me, self._owner.until(), may_hollow=True)
            return Allocation(connection, asker, self._max_size).shrink(limit)

    def commit(
        self,
        placed: Sequence[Placed],
        failed: Sequence[Slot],
        *,
        replace: bool,
        deadline: float | None = None,
        owner: str | None = None,
    ) -> list[int]:
        """See Index."""
        with self._connections.writing(deadline) as connection:
            publishing.release(connection, owner or self._me, failed)
            return publishing.publish(connection, owner or self._me, placed, replace=replace)

    def delete(self, keys: Sequence[str], deadline: float | None = None) -> list[bool]:
        """See Index."""
        gone: set[str] = set()
        with self._connections.writing(deadline) as connection:
            for part in _parts(keys):
                marks = ",".join("?" * len(part))
                rows = connection.execute(
                    f"SELECT key, id, slot_bytes, slot FROM pages WHERE key IN ({marks})", part
                ).fetchall()
                gone |= {key for key, *_ in rows}
                publishing.remove(connection, [(page, size, slot) for _, page, size, slot in rows])
        answers = []
        for key in keys:
            answers.append(key in gone)
            gone.discard(key)
        return answers

    def clear(self, namespace: str) -> int:
        """See Index."""
        count = 0
        within, values = _within(namespace)
        while True:  # some at a time, so that whoever writes meanwhile does not wait for all of them
            with self._connections.writing(None) as connection:
                rows = connection.execute(
                    f"SELECT id, slot_bytes, slot FROM pages WHERE {within} LIMIT 4096", values
                ).fetchall()
                publishing.remove(connection, rows)
            count += len(rows)
            if len(rows) < 4096:
                return count

    def close(self, *, ours: bool = True) -> None:
        """See Index."""
        if ours and self._me:
            with suppress(IndexFailure), self._connections.writing(None) as connection:
                give_back(connection, "owner = ?", (self._me,))
        self._me = ""
        self._owner.close(ours=ours)
        self._connections.close(ours=ours)
        self._directory.close()

    # -- inside --------------------------------------------------------------------------------------------------

    @property
    def _seconds(self) -> float | None:
        return self._owner.seconds if isinstance(self._owner, Terms) else None

    def _is_short(self, connection: sqlite3.Connection, nbytes: int) -> bool:
        """Whether left-overs are worth looking for: slots are held by others, and there is no room beside them."""
        if connection.execute("SELECT 1 FROM held WHERE owner <> ? LIMIT 1", (self._me,)).fetchone() is None:
            return False
        if self._max_size is None:
            return True
        [(held,)] = connection.execute("SELECT coalesce(sum(slot_bytes * solid), 0) FROM classes")
        return int(held) + nbytes > self._max_size


def _epoch(connection: sqlite3.Connection) -> int:
    return int(connection.execute("SELECT value FROM facts WHERE name = 'epoch'").fetchone()[0])


def _parts(values: Sequence[str]) -> list[list[str]]:
    return [list(values[start : start + _KEYS_AT_ONCE]) for start in range(0, len(values), _KEYS_AT_ONCE)]


def _within(namespace: str | None) -> tuple[str, tuple[str, ...]]:
    """The condition that a key is of this namespace: itself, or all that begins with it and a slash."""
    if namespace is None:
        return "1", ()
    return "(key = ? OR (key > ? AND key < ?))", (namespace, f"{namespace}/", f"{namespace}0")


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"
