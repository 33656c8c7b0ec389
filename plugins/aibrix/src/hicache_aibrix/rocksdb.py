"""AIBrix's ROCKSDB connector, built from options instead of the process's environment. Imported after AIBrix."""

from __future__ import annotations

import ctypes
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import rocksdict
from aibrix_kvcache.l2.connectors.rocksdb import RocksDBConnector

from hicache_aibrix.options import AibrixOptions
from hicache_core.errors import OpenError

_MIB = 1 << 20


class OwnedRocksDB(RocksDBConnector):  # type: ignore[misc]  # AIBrix has no types
    """A connector that a forked child does not close."""

    def leave_to_parent(self) -> None:
        """See Connector. The child keeps its copy of the open database for ever: closing it would write, and wait for
        threads that are not there."""
        database: Any = self.store
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(database))
        self.store: Any = None


def make_rocksdb(root: Path, options: AibrixOptions, pool: Executor) -> OwnedRocksDB:
    """An open connector. Raises OpenError with the cause; a lock held by another process is named."""
    settings = rocksdict.Options(raw_mode=True)
    settings.create_if_missing(True)
    settings.set_write_buffer_size(options.write_buffer_size or 64 * _MIB)
    settings.set_max_total_wal_size(options.max_wal_size or 128 * _MIB)
    settings.set_max_background_jobs(options.background_jobs or 2)
    # A time to live of 0 is none. The database is opened so in any case: it marks every value with its time.
    access = rocksdict.AccessType.read_write().with_ttl(options.ttl_seconds or 0)
    connector = OwnedRocksDB(str(root), settings, access, pool)
    status = connector.open()
    if not status.is_ok():
        raise OpenError(_refusal(root, str(status.value)))
    return connector


def _refusal(root: Path, cause: str) -> str:
    if "lock" in cause.lower():
        return (
            f"the RocksDB at {root} is in use ({cause}); it belongs to one process at a time: give each process "
            "(each rank) a root of its own, or set connector=shfs, which any number may share"
        )
    return f"RocksDB refused {root}: {cause}; see the file LOG there, or name another root"
