"""AIBrix KVCache, imported when a store opens, without its side effects on the process."""

from __future__ import annotations

import asyncio
import sys
import threading
from dataclasses import dataclass
from typing import Any

from hicache_aibrix.options import INSTALL
from hicache_core.errors import MissingDependencyError

_importing = threading.Lock()


@dataclass(frozen=True, slots=True)
class Sdk:
    """The parts of AIBrix that are used here."""

    shfs: Any
    """class SHFSConnector"""
    rocksdb: Any
    """class RocksDBConnector"""
    rocksdict: Any
    version: str


def load_sdk() -> Sdk:
    """Import AIBrix and leave asyncio as it was: its import makes uvloop the event loop of the whole process.

    Raises MissingDependencyError with the install line.
    """
    with _importing:
        first = "aibrix_kvcache.cache_manager" not in sys.modules
        policy = asyncio.get_event_loop_policy()
        try:
            import aibrix_kvcache
            import rocksdict
            from aibrix_kvcache.l2.connectors.rocksdb import RocksDBConnector
            from aibrix_kvcache.l2.connectors.shfs import SHFSConnector
        except ImportError as error:
            raise MissingDependencyError(
                f"backend aibrix needs AIBrix KVCache 0.8 and its rocksdict: {INSTALL} ({error})"
            ) from error
        finally:
            if first:  # else whoever uses AIBrix itself has chosen what is there
                asyncio.set_event_loop_policy(policy)
        return Sdk(SHFSConnector, RocksDBConnector, rocksdict, str(aibrix_kvcache.__version__))
