"""A FAKE of the module `simm.kv`: the same classes and calls, objects as rows of a file.

SiMM's transport needs an RDMA card and a package that is not public. This stands in for client and servers, for tests
and for the conformance suite's throwaway store; nothing else uses it. The flag `cm_primary_node_ip` is a directory.
What the API leaves open is decided here so: a put replaces atomically; of an object longer than its buffer the first
bytes are given, and its true length.
"""

from __future__ import annotations

import ctypes
import sqlite3
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

NOT_FOUND = -2
ABORTED = -1

flags: dict[str, str] = {}
registered: dict[int, MemoryRegion] = {}
"""What is registered now, by identity: tests look for leaks here."""


class MemoryRegion:
    """A registered stretch of memory."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.address, self.nbytes = address, nbytes


class BlockView:
    """A stretch of registered memory."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.address, self.nbytes = address, nbytes

    @staticmethod
    def from_buffer(pointer: int, nbytes: int, mr: MemoryRegion) -> BlockView:
        """Raises ValueError for memory outside the region, or of one that is registered no more."""
        if id(mr) not in registered or not mr.address <= pointer <= pointer + nbytes <= mr.address + mr.nbytes:
            raise ValueError("the buffer is not within the registered region")
        return BlockView(pointer, nbytes)

    @staticmethod
    def from_tensor(tensor: Any, mr: MemoryRegion) -> BlockView:
        """A whole tensor."""
        return BlockView.from_buffer(tensor.data_ptr(), tensor.numel() * tensor.element_size(), mr)


def set_flag(name: str, value: str) -> None:
    """Flags are strings, set before a Store is made."""
    if not isinstance(value, str):
        raise TypeError(f"flag {name} takes a str, not {type(value).__name__}")
    flags[name] = value


def register_mr(tensor: Any) -> MemoryRegion:
    """Register a tensor's memory."""
    region = MemoryRegion(tensor.data_ptr(), tensor.numel() * tensor.element_size())
    registered[id(region)] = region
    return region


def deregister_mr(region: MemoryRegion) -> None:
    """The reverse."""
    del registered[id(region)]


class Store:
    """The client."""

    def __init__(self) -> None:
        root = Path(flags.get("cm_primary_node_ip", ""))
        if not root.is_absolute() or not root.is_dir():
            raise RuntimeError(f"no cluster manager at {root}")
        self._objects = Objects(root / "simm.db")

    def put(self, key: str, view: BlockView) -> int:
        """0, or an error."""
        self._objects.put(key, bytes((ctypes.c_char * view.nbytes).from_address(view.address)))
        return 0

    def get(self, key: str, view: BlockView) -> int:
        """Bytes of the object, or a negative error."""
        data = self._objects.get(key)
        if data is None:
            return NOT_FOUND
        ctypes.memmove(view.address, data, min(view.nbytes, len(data)))
        return len(data)

    def exists(self, key: str) -> bool:
        """Whether it is there."""
        return self._objects.get(key) is not None

    def delete(self, key: str) -> int:
        """0, or an error."""
        return 0 if self._objects.remove(key) else NOT_FOUND

    def mput(self, keys: Sequence[str], views: Sequence[BlockView]) -> list[int]:
        """put of each."""
        return [self.put(key, view) for key, view in zip(keys, views, strict=True)]

    def mget(self, keys: Sequence[str], views: Sequence[BlockView]) -> list[int]:
        """get of each."""
        return [self.get(key, view) for key, view in zip(keys, views, strict=True)]

    def mexists(self, keys: Sequence[str]) -> list[bool]:
        """exists of each."""
        return [self.exists(key) for key in keys]


class Objects:
    """The fake servers' objects."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=30)
        self._db.execute("CREATE TABLE IF NOT EXISTS object (key TEXT PRIMARY KEY, bytes BLOB)")

    def __del__(self) -> None:
        self._db.close()

    def get(self, key: str) -> bytes | None:
        """The object, or None."""
        with self._lock:
            row = self._db.execute("SELECT bytes FROM object WHERE key = ?", (key,)).fetchone()
        return None if row is None else row[0]

    def put(self, key: str, data: bytes) -> None:
        """Store or replace."""
        with self._lock:
            self._db.execute("INSERT OR REPLACE INTO object VALUES (?, ?)", (key, data))

    def remove(self, key: str) -> bool:
        """Remove; whether it was there."""
        with self._lock:
            return self._db.execute("DELETE FROM object WHERE key = ?", (key,)).rowcount > 0

    def keys(self) -> list[str]:
        """Every key."""
        with self._lock:
            return [key for (key,) in self._db.execute("SELECT key FROM object")]
