"""The tables of an index, made when it is first opened."""

from __future__ import annotations

import os
import sqlite3

from hicache_core.errors import OpenError

LAYOUT = 1
DATABASE = "index.sqlite"

_TABLES = """
CREATE TABLE facts(name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE pages(
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  key TEXT NOT NULL UNIQUE,
  slot_bytes INTEGER NOT NULL,
  slot INTEGER NOT NULL,
  nbytes INTEGER NOT NULL,
  written REAL NOT NULL,
  used REAL NOT NULL);
CREATE INDEX pages_by_use ON pages(used);
CREATE TABLE held(
  slot_bytes INTEGER, slot INTEGER, owner TEXT NOT NULL, until REAL, PRIMARY KEY(slot_bytes, slot)) WITHOUT ROWID;
CREATE TABLE free(slot_bytes INTEGER, hollow INTEGER, slot INTEGER, PRIMARY KEY(slot_bytes, hollow, slot))
  WITHOUT ROWID;
CREATE TABLE classes(slot_bytes INTEGER PRIMARY KEY, extent INTEGER NOT NULL, solid INTEGER NOT NULL);
"""
# held: slots of writers at work, or being emptied. until: seconds since the epoch, NULL: while its owner lives.
# classes: extent = slots ever made; solid = those that may hold blocks on disk (all but the hollow free ones).
# AUTOINCREMENT: an id is never given to a second page, so it stands for one page in one slot.


def make(connection: sqlite3.Connection) -> str:
    """Make the tables where they are missing; the store's id. Call it in a write transaction. Raises OpenError."""
    try:
        facts = dict(connection.execute("SELECT name, value FROM facts"))
    except sqlite3.OperationalError:
        facts = {}
        for statement in _TABLES.split(";"):
            connection.execute(statement)
        facts = {"layout": LAYOUT, "store_id": os.urandom(8).hex(), "epoch": 0}
        connection.executemany("INSERT INTO facts VALUES (?, ?)", facts.items())
    if facts.get("layout") != LAYOUT:
        raise OpenError(
            f"a later hicache-hf3fs wrote this index (layout {facts.get('layout')}, ours {LAYOUT}); upgrade"
        )
    return str(facts["store_id"])


def forget_what_a_power_cut_took(connection: sqlite3.Connection, boot: str, window: float) -> int:
    """After a reboot, remove the pages of the last `window` seconds; how many. Call it in a write transaction.

    Their bytes may never have reached the disk, and what lies in their slots instead may be another key's sound page.
    """
    found = connection.execute("SELECT value FROM facts WHERE name = 'boot'").fetchone()
    if found is not None and found[0] == boot:
        return 0
    connection.execute("INSERT OR REPLACE INTO facts VALUES ('boot', ?)", (boot,))
    if found is None:
        return 0
    recent = "SELECT slot_bytes, 0, slot FROM pages WHERE written > (SELECT max(written) FROM pages) - ?"
    connection.execute(f"INSERT INTO free {recent}", (window,))
    return connection.execute(
        "DELETE FROM pages WHERE written > (SELECT max(written) FROM pages) - ?", (window,)
    ).rowcount
