"""AIBrix KVCache, imported when a store opens, without its side effects on the process."""

from __future__ import annotations

import asyncio
import importlib
import sys
import threading

from hicache_aibrix.options import INSTALL
from hicache_core.errors import MissingDependencyError, OpenError

_MODULES = (
    "aibrix_kvcache",
    "aibrix_kvcache.l2.connectors.rocksdb",
    "aibrix_kvcache.l2.connectors.shfs",
    "rocksdict",
)
_importing = threading.Lock()


def load_sdk() -> None:
    """Import AIBrix and leave asyncio as it was: its import makes uvloop the event loop of the whole process.

    Raises MissingDependencyError, or OpenError for a version that is another, with the install line.
    """
    with _importing:
        first = "aibrix_kvcache.cache_manager" not in sys.modules
        policy = asyncio.get_event_loop_policy()
        try:
            modules = {name: importlib.import_module(name) for name in _MODULES}
        except ImportError as error:
            raise MissingDependencyError(
                f"backend aibrix needs AIBrix KVCache 0.8 and its rocksdict: {INSTALL} ({error})"
            ) from error
        finally:
            if first:  # else whoever uses AIBrix itself has chosen what is there
                asyncio.set_event_loop_policy(policy)
    shfs = modules["aibrix_kvcache.l2.connectors.shfs"].SHFSConnector
    if not (hasattr(shfs, "_put") and hasattr(shfs, "_key_to_filepath")):
        installed = getattr(modules["aibrix_kvcache"], "__version__", "of an unknown version")
        raise OpenError(f"aibrix_kvcache {installed} has another SHFS connector than 0.8: {INSTALL}")
