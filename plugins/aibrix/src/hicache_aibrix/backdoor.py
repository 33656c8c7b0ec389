"""The back door for the conformance suite: SHFS by its files, RocksDB by rocksdict, both past the adapter."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hicache_aibrix.backend import AibrixBackend
from hicache_aibrix.options import AibrixOptions
from hicache_aibrix.sdk import load_sdk

_is_name = re.compile(r"(?:3[0-9]|6[1-6]){64}").fullmatch
"""64 hex digits as ASCII, in hex."""


def _hash(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


class ShfsBackDoor:
    """The files of SHFS: two levels of directories, the name in hex of its ASCII."""

    def __init__(self, root: Path) -> None:
        self.root: Path | None = root
        self._top = root

    def name_of(self, key: str) -> str:
        """What the store keeps of a key."""
        return _hash(key)

    def raw_get(self, key: str) -> bytes | None:
        """The file's bytes, or None."""
        try:
            return self._path(key).read_bytes()
        except FileNotFoundError:
            return None

    def raw_set(self, key: str, data: bytes) -> None:
        """Put exactly these bytes into the key's file, in place."""
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def raw_delete(self, key: str) -> bool:
        """Remove the file; whether there was one."""
        path = self._path(key)
        there = path.exists()
        path.unlink(missing_ok=True)
        return there

    def raw_list(self) -> list[str]:
        """The hashes of all pages."""
        found = (path for path in self._top.glob("??/??/*") if _is_name(path.name) and path.is_file())
        return [bytes.fromhex(path.name).decode() for path in found]

    def _path(self, key: str) -> Path:
        name = _hash(key).encode().hex()
        return self._top / name[:2] / name[2:4] / name


class RocksBackDoor:
    """The rows of the database. RocksDB lets nobody else in, so an open store is entered through its own handle."""

    root = None
    page_files = False

    def __init__(self, connector: Any) -> None:
        self._connector = connector

    def name_of(self, key: str) -> str:
        """What the store keeps of a key."""
        return _hash(key)

    def raw_get(self, key: str) -> bytes | None:
        """The row, or None."""
        with self._database() as rows:
            found: bytes | None = rows.get(_hash(key).encode())
        return found

    def raw_set(self, key: str, data: bytes) -> None:
        """Store exactly these bytes."""
        with self._database() as rows:
            rows.put(_hash(key).encode(), data)

    def raw_delete(self, key: str) -> bool:
        """Remove the row; whether there was one."""
        name = _hash(key).encode()
        with self._database() as rows:
            there = name in rows
            rows.delete(name)
        return bool(there)

    def raw_list(self) -> list[str]:
        """The hashes of all rows."""
        with self._database() as rows:
            return [name.decode() for name in rows.keys()]  # noqa: SIM118 - a database, no dict

    @contextmanager
    def _database(self) -> Iterator[Any]:
        if self._connector.store is not None:
            yield self._connector.store
            return
        import rocksdict

        settings = rocksdict.Options(raw_mode=True)
        rows = rocksdict.Rdict(
            self._connector.path, settings, access_type=rocksdict.AccessType.read_write().with_ttl(0)
        )
        try:
            yield rows
        finally:
            rows.close()


class AibrixKit:
    """What the suite needs to know of this backend. SHFS where nothing else is said."""

    def throwaway(self, directory: Path) -> dict[str, Any]:
        """Options of a fresh store in an empty directory."""
        return {"root": str(directory / "store")}

    def before_fork(self, options: Mapping[str, Any]) -> None:
        """Import AIBrix (and torch) once, not in every process that is forked."""
        load_sdk()

    def back_door(self, backend: object, options: AibrixOptions) -> ShfsBackDoor | RocksBackDoor:
        """The way into the store of these options."""
        if options.connector == "shfs":
            return ShfsBackDoor(Path(options.root))
        assert isinstance(backend, AibrixBackend), "the back door of RocksDB goes through the backend's own database"
        return RocksBackDoor(backend.connector)


kit = AibrixKit()
