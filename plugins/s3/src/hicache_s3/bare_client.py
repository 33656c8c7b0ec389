"""obstore without hicache, for `make bench-backends`: sixteen threads, one call per page, no seal, no check."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from hicache_core.plugin.bare_clients import BareCase, PageMemory
from hicache_s3.dev_server import dev_server
from hicache_s3.location import locate

THREADS = 16
"""As many pages in flight as the backend has by default."""


class ObstoreThreads:
    """The synchronous calls on a pool of threads: of obstore's ways the fastest here, if by little."""

    def __init__(self, options: Mapping[str, Any], memory: PageMemory) -> None:
        self._obstore: Any = import_module("obstore")
        stores: Any = import_module("obstore.store")
        location = locate(options["url"])
        settings = {name: options[name] for name in ("endpoint", "region", "access_key_id", "secret_access_key")}
        self._store: Any = stores.S3Store(
            location.bucket,
            config={**settings, "unsigned_payload": True},
            client_options={"allow_http": True},
        )
        self._prefix = location.path("bare/")
        self._memory = memory
        self._pool = ThreadPoolExecutor(THREADS)

    def put(self, keys: Sequence[str], slots: Sequence[int]) -> None:
        """A put per page, straight from the memory."""
        list(self._pool.map(self._put, keys, slots))

    def get(self, keys: Sequence[str], slots: Sequence[int]) -> None:
        """A get per page, copied into the memory."""
        list(self._pool.map(self._get, keys, slots))

    def remove(self, keys: Sequence[str]) -> None:
        """One bulk delete."""
        self._obstore.delete(self._store, [self._prefix + key for key in keys])

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()

    def _put(self, key: str, slot: int) -> None:
        self._obstore.put(self._store, self._prefix + key, self._memory[slot], use_multipart=False)

    def _get(self, key: str, slot: int) -> None:
        row = self._memory[slot]
        data = self._obstore.get_range(self._store, self._prefix + key, start=0, end=row.nbytes)
        np.copyto(row, np.frombuffer(data, np.uint8))


@contextmanager
def throwaway(directory: Path, nbytes: int) -> Iterator[Mapping[str, Any]]:
    """A SeaweedFS for the run."""
    server = dev_server(directory)
    server.start()
    try:
        yield server.options
    finally:
        server.kill()


CASES = (BareCase("obstore on SeaweedFS", throwaway, ObstoreThreads, at_least=0.9, workers_apart=False),)
