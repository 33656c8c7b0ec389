"""What backend `aibrix` is compared with in `make bench-backends`: AIBrix's own connectors, on its own regions.

A block is put with its region and got into it, all of a call at once on AIBrix's default number of threads. Its mput
and mget, where a connector has them, await one block after the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from hicache_aibrix.options import AibrixOptions
from hicache_aibrix.sdk import load_sdk
from hicache_aibrix.store import block_hash
from hicache_core.plugin.bare_clients import BareCase, PageMemory

THREADS = 8
"""AIBrix's default (AIBRIX_KV_CACHE_OL_L2_CACHE_NUM_ASYNC_WORKERS)."""


class ConnectorClient:
    """A connector as AIBrix has it: nothing is checked, and of two writers of one block neither is refused."""

    def __init__(self, options: Mapping[str, Any], memory: PageMemory) -> None:
        load_sdk()
        region: Any = import_module("aibrix_kvcache.memory.external_memory_region").ExternalMemoryRegion
        slab = import_module("torch").from_numpy(memory.reshape(-1))
        nbytes = memory.shape[1]
        self._regions = [region(slab, slot * nbytes, nbytes) for slot in range(len(memory))]
        self._pool = ThreadPoolExecutor(THREADS)
        self._loop: Any = import_module("uvloop").new_event_loop()  # AIBrix runs on no other
        self._connector = _connector(AibrixOptions(**options), self._pool)
        _check(self._connector.open())

    def put(self, keys: Sequence[str], slots: Sequence[int]) -> None:
        """Store each page."""
        self._moved(self._connector.put, keys, slots)

    def get(self, keys: Sequence[str], slots: Sequence[int]) -> None:
        """Read each page."""
        self._moved(self._connector.get, keys, slots)

    def remove(self, keys: Sequence[str]) -> None:
        """Delete each page."""
        self._all([self._connector.delete(block_hash(key)) for key in keys])

    def close(self) -> None:
        """Close the connector, and end its threads."""
        self._pool.shutdown()
        self._connector.close()
        self._loop.close()

    def _moved(self, call: Callable[..., Awaitable[Any]], keys: Sequence[str], slots: Sequence[int]) -> None:
        self._all([call(block_hash(key), self._regions[slot]) for key, slot in zip(keys, slots, strict=True)])

    def _all(self, calls: Sequence[Awaitable[Any]]) -> None:
        for status in self._loop.run_until_complete(_gathered(calls)):
            _check(status)


async def _gathered(calls: Sequence[Awaitable[Any]]) -> list[Any]:
    return await asyncio.gather(*calls, return_exceptions=True)  # or those that are left would go on unseen


def _check(status: Any) -> None:
    """Raise what was raised, or OSError for a status that is no yes."""
    if isinstance(status, BaseException):
        raise status
    if not status.is_ok():
        raise OSError(f"AIBrix answered {status.error_code.name}: {status.value}")


def _connector(options: AibrixOptions, pool: ThreadPoolExecutor) -> Any:
    """AIBrix's connector, with the backend's settings, in a directory beside the backend's."""
    root = Path(f"{options.root}-bare")
    if options.connector == "rocksdb":
        from hicache_aibrix.rocksdb import make_rocksdb

        return make_rocksdb(root, options, pool)
    return import_module("aibrix_kvcache.l2.connectors.shfs").SHFSConnector(str(root), pool)


def _case(connector: Literal["shfs", "rocksdb"]) -> BareCase:
    """Both sides on one connector. No share of its throughput is asked."""

    @contextmanager
    def store_in(directory: Path, nbytes: int) -> Iterator[Mapping[str, Any]]:
        load_sdk()  # raises MissingDependencyError, with the install line, before anything is measured
        yield {"root": str(directory / "store"), "connector": connector}

    return BareCase(connector.upper(), store_in, ConnectorClient, at_least=0, workers_apart=False)


CASES = (_case("shfs"), _case("rocksdb"))
