"""A FAKE of the vendor's module `eic`: the same classes and calls, objects as rows of a file.

There is no public EIC client or server to test with. This stands in for both, for tests and for the conformance
suite's throwaway store; nothing else uses it. `endpoint` is a directory. What the API leaves open is decided here
so: a set replaces atomically; of an object longer than its buffer the first bytes are given.
"""

from __future__ import annotations

import ctypes
import enum
import sqlite3
import threading
from pathlib import Path
from typing import Any


class StatusCode(enum.Enum):
    """Of a call, and of each key in it."""

    SUCCESS = 0
    PARTIAL_FAILED = 1
    FAILED = 2


class LogLevel(enum.IntEnum):
    """Of the client's log."""

    INFO = 0
    WARNING = 1
    ERROR = 2


class TransportType(enum.IntEnum):
    """How bytes travel."""

    TCP = 0
    RDMA = 1
    GDR = 2


class MemoryType(enum.Enum):
    """What is registered."""

    MEMORY_CUDA = 0


class InitOption:
    """Fields are set before `init`."""

    log_dir = flag_file = multi_net_local_interface_names = ""
    log_level: Any = LogLevel.INFO
    transport_type: Any = TransportType.TCP


class MemoryInfo:
    """Fields are set before `register_memory`."""

    type: Any = None
    cuda_id = 0


class SetOption:
    """Fields are set before `mset`."""

    ns = ""
    ttl_second = -1


class GetOption:
    """Fields are set before `mget`."""

    ns = ""


class ExistOption:
    """Fields are set before `mexist`."""

    ns = ""


class DelOption:
    """Fields are set before `mdel`."""

    ns = ""


class StringVector:
    """A list of keys that only grows."""

    def __init__(self) -> None:
        self.items: list[str] = []

    def append(self, item: str) -> None:
        """Add a key."""
        if not isinstance(item, str):
            raise TypeError(f"a key is a str, not {type(item).__name__}")
        self.items.append(item)


class IOBuffers:
    """A list of (address, bytes, registered) that only grows."""

    def __init__(self) -> None:
        self.items: list[tuple[int, int, bool]] = []

    def append(self, pointer: int, nbytes: int, registered: bool) -> None:
        """Add a buffer."""
        self.items.append((int(pointer), int(nbytes), bool(registered)))


class _Outcome:
    def __init__(self, codes: list[StatusCode]) -> None:
        self.status_codes = codes


class Client:
    """The client."""

    def __init__(self) -> None:
        self._store: Store | None = None
        self.registered: list[tuple[int, int, bool]] = []

    def init(self, instance_id: str, endpoint: str, option: InitOption) -> int:
        """0 where the directory is there."""
        if not Path(endpoint).is_dir():
            return -2
        self._store = Store(Path(endpoint) / f"{instance_id}.db")
        return 0

    def register_memory(self, vals: IOBuffers, info: MemoryInfo) -> None:
        """Note the buffers."""
        if info.type is not MemoryType.MEMORY_CUDA:
            raise TypeError("MemoryInfo.type is not set")
        self.registered += vals.items

    def mset(self, keys: StringVector, vals: IOBuffers, option: SetOption) -> tuple[StatusCode, _Outcome]:
        """Store each buffer under its key."""
        for key, (pointer, nbytes, _) in zip(keys.items, vals.items, strict=True):
            self._at.put(option.ns, key, bytes((ctypes.c_char * nbytes).from_address(pointer)))
        return _answer([StatusCode.SUCCESS] * len(keys.items))

    def mget(self, keys: StringVector, option: GetOption, vals: IOBuffers) -> tuple[StatusCode, IOBuffers, _Outcome]:
        """Fill each buffer."""
        codes = []
        for key, (pointer, nbytes, _) in zip(keys.items, vals.items, strict=True):
            data = self._at.get(option.ns, key)
            if data is not None:
                ctypes.memmove(pointer, data, min(nbytes, len(data)))
            codes.append(StatusCode.FAILED if data is None else StatusCode.SUCCESS)
        status, outcome = _answer(codes)
        return status, vals, outcome

    def mexist(self, keys: StringVector, option: ExistOption) -> tuple[StatusCode, _Outcome]:
        """Whether each key is there."""
        if len(keys.items) > 1024:
            return StatusCode.FAILED, _Outcome([])
        found = [self._at.get(option.ns, key) is not None for key in keys.items]
        return _answer([StatusCode.SUCCESS if one else StatusCode.FAILED for one in found])

    def mdel(self, keys: StringVector, option: DelOption) -> tuple[StatusCode, _Outcome]:
        """Remove keys."""
        for key in keys.items:
            self._at.remove(option.ns, key)
        return _answer([StatusCode.SUCCESS] * len(keys.items))

    @property
    def _at(self) -> Store:
        assert self._store is not None, "init first"
        return self._store


class Store:
    """The fake server's objects."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=30)
        self._db.execute("CREATE TABLE IF NOT EXISTS object (ns TEXT, key TEXT, bytes BLOB, PRIMARY KEY (ns, key))")

    def __del__(self) -> None:
        self._db.close()

    def get(self, ns: str, key: str) -> bytes | None:
        """The object, or None."""
        with self._lock:
            row = self._db.execute("SELECT bytes FROM object WHERE ns = ? AND key = ?", (ns, key)).fetchone()
        return None if row is None else row[0]

    def put(self, ns: str, key: str, data: bytes) -> None:
        """Store or replace."""
        with self._lock:
            self._db.execute("INSERT OR REPLACE INTO object VALUES (?, ?, ?)", (ns, key, data))

    def remove(self, ns: str, key: str) -> bool:
        """Remove; whether it was there."""
        with self._lock:
            return self._db.execute("DELETE FROM object WHERE ns = ? AND key = ?", (ns, key)).rowcount > 0

    def keys(self, ns: str) -> list[str]:
        """Every key."""
        with self._lock:
            return [key for (key,) in self._db.execute("SELECT key FROM object WHERE ns = ?", (ns,))]


def _answer(codes: list[StatusCode]) -> tuple[StatusCode, _Outcome]:
    whole = all(code is StatusCode.SUCCESS for code in codes)
    return StatusCode.SUCCESS if whole else StatusCode.PARTIAL_FAILED, _Outcome(codes)
