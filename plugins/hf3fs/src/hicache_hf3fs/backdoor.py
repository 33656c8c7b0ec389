"""The back door for the conformance suite (entry point `hicache.backdoors`): slots and rows as they are on disk."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from hicache_core.plugin.dev_servers import DevServer
from hicache_hf3fs.dev_server import dev_server
from hicache_hf3fs.emulator import install_emulator
from hicache_hf3fs.index.interface import SLOT_UNIT, place
from hicache_hf3fs.index.schema import DATABASE
from hicache_hf3fs.options import Hf3fsOptions


class Hf3fsBackDoor:
    """Reads and writes slots and rows with SQLite and the files alone."""

    page_files = False
    """A page is a part of a file, so cases that plant something in the place of a page's file do not apply."""

    def __init__(self, root: Path, index: Path) -> None:
        self.root: Path | None = root
        self._slots, self._database = root / "slots", index / DATABASE

    def raw_get(self, key: str) -> bytes | None:
        """The bytes in the key's slot, or None."""
        with self._connection() as connection:
            row = connection.execute("SELECT slot_bytes, slot, nbytes FROM pages WHERE key = ?", (key,)).fetchone()
        if row is None:
            return None
        stripe, at = place(row[1])
        with open(self._slots / f"{row[0]}.{stripe}", "rb") as file:
            return os.pread(file.fileno(), row[2], row[0] * at)

    def raw_set(self, key: str, data: bytes) -> None:
        """Put exactly these bytes under the key: into its slot where they fit, else into a new one."""
        with self._connection() as connection:
            connection.execute("BEGIN IMMEDIATE")
            row = connection.execute("SELECT id, slot_bytes, slot FROM pages WHERE key = ?", (key,)).fetchone()
            if row is None or len(data) > row[1]:
                row = self._other_slot(connection, key, len(data))
            connection.execute("UPDATE pages SET nbytes = ? WHERE id = ?", (len(data), row[0]))
            stripe, at = place(row[2])
            fd = os.open(self._slots / f"{row[1]}.{stripe}", os.O_WRONLY | os.O_CREAT, 0o600)
            os.pwrite(fd, data, row[1] * at)
            os.close(fd)
            connection.execute("COMMIT")

    def raw_delete(self, key: str) -> bool:
        """Remove the row; whether there was one."""
        with self._connection() as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT INTO free SELECT slot_bytes, 0, slot FROM pages WHERE key = ?", (key,))
            gone = connection.execute("DELETE FROM pages WHERE key = ?", (key,)).rowcount
            connection.execute("UPDATE facts SET value = value + 1 WHERE name = 'epoch'")
            connection.execute("COMMIT")
        return gone > 0

    def raw_list(self) -> list[str]:
        """The keys of all rows."""
        with self._connection() as connection:
            return [key for (key,) in connection.execute("SELECT key FROM pages")]

    @staticmethod
    def _other_slot(connection: sqlite3.Connection, key: str, nbytes: int) -> tuple[int, int, int]:
        """Move the key to a fresh slot at the end of the file of its size: (id, slot_bytes, slot)."""
        connection.execute("INSERT INTO free SELECT slot_bytes, 0, slot FROM pages WHERE key = ?", (key,))
        connection.execute("DELETE FROM pages WHERE key = ?", (key,))
        slot_bytes = -(-max(1, nbytes) // SLOT_UNIT) * SLOT_UNIT
        connection.execute("INSERT OR IGNORE INTO classes VALUES (?, 0, 0)", (slot_bytes,))
        connection.execute(
            "UPDATE classes SET extent = extent + 1, solid = solid + 1 WHERE slot_bytes = ?", (slot_bytes,)
        )
        [(extent,)] = connection.execute("SELECT extent FROM classes WHERE slot_bytes = ?", (slot_bytes,))
        now = time.time()
        page = connection.execute(
            "INSERT INTO pages(key, slot_bytes, slot, nbytes, written, used) VALUES (?, ?, ?, ?, ?, ?)",
            (key, slot_bytes, extent - 1, nbytes, now, now),
        ).lastrowid
        return int(page or 0), slot_bytes, extent - 1

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        # Not made where it is missing: an empty index would look like an empty store.
        there = f"{self._database.absolute().as_uri()}?mode=rw"
        with closing(sqlite3.connect(there, uri=True, isolation_level=None)) as connection:
            yield connection


def _way_in(options: Hf3fsOptions) -> Hf3fsBackDoor:
    """The way in. Of a service only the throwaway's index is known: the service does not tell where it keeps it."""
    root = Path(options.root)
    if options.metadata_url is not None:
        return Hf3fsBackDoor(root, root.with_name("index"))
    return Hf3fsBackDoor(root, Path(options.index_dir or root))


class PosixKit:
    """The mounted path and the embedded index."""

    def throwaway(self, directory: Path) -> dict[str, Any]:
        """Options of a fresh store in an empty directory."""
        return {"root": str(directory / "store")}

    def back_door(self, backend: object, options: Hf3fsOptions) -> Hf3fsBackDoor:
        """The way into the store at options.root."""
        return _way_in(options)


class ServiceKit:
    """The mounted path and a metadata service, started anew for each throwaway store."""

    def __init__(self) -> None:
        self._server: DevServer | None = None

    def throwaway(self, directory: Path) -> dict[str, Any]:
        """Start a service in an empty directory."""
        self.close()
        self._server = dev_server(directory)
        self._server.start()
        return dict(self._server.options)

    def back_door(self, backend: object, options: Hf3fsOptions) -> Hf3fsBackDoor:
        """The way into the store at options.root; its index lies beside it."""
        return _way_in(options)

    def kill_store(self) -> None:
        """kill -9 the service."""
        if self._server is not None:
            self._server.kill()

    def restart_store(self) -> None:
        """Start it again in its directory, on its port."""
        if self._server is not None:
            self._server.restart()

    def close(self) -> None:
        """Stop the service."""
        if self._server is not None:
            self._server.stop()
            self._server = None


class EmulatedKit(PosixKit):
    """USRBIO on the emulator."""

    fake = "hf3fs_py_usrbio is our emulator of its Python interface on plain files; no 3FS was there"

    def throwaway(self, directory: Path) -> dict[str, Any]:
        """A directory that plays a 3FS mount, and the index beside it."""
        options: dict[str, Any] = {
            "root": str(directory / "mount" / "store"),
            "index_dir": str(directory / "index"),
            "io": "usrbio",
        }
        options |= {"iov_bytes": 128 << 10}  # larger pages go in pieces
        self.enter_process(options)
        return options

    def enter_process(self, options: Mapping[str, Any]) -> None:
        """Put the emulator in the place of the SDK."""
        install_emulator(Path(options["root"]).parent)


_KITS = {"posix": PosixKit, "service": ServiceKit, "usrbio": EmulatedKit}
PROVE_VARIABLE = "HICACHE_HF3FS_PROVE"
"""Environment variable: which way of running the store the suite proves. posix (default), service, usrbio."""

kit = _KITS[os.environ.get(PROVE_VARIABLE, "posix")]()
