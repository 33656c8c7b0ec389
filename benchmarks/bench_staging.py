"""Memory that I/O takes beyond the pools: what the session stages, and what Python allocates while pages move.

The store is a directory, so nothing that is counted here is the store's own.
"""

from __future__ import annotations

import tempfile
import tracemalloc
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from hicache_conformance.xor import Xor

from hicache_core.keys import page_hashes
from hicache_core.namespace import Identity
from hicache_core.pools import KVGeometry, make_host_pool
from hicache_core.storage import open_session
from hicache_core.storage.settings import SessionSettings

PAGE_BYTES, PAGES = 1 << 20, 256
WORKERS = 2


@dataclass(frozen=True)
class Case:
    """Bytes of pages beyond the pool per busy I/O worker, and the promised most, while 512 MiB moved."""

    what: str
    per_worker: float
    limit: float


def measure() -> list[Case]:
    """One case straight from and into the pool, one through a transform.

    The first holds no page memory, only Python's own objects (keys, lists, results), which the second has too:
    what the second has beyond them is what it stages.
    """
    straight = _peak(())
    staged = max(0, _peak((Xor(),)) - straight)
    limit = float(max(PAGE_BYTES, SessionSettings().stage_bytes))
    return [Case("straight", straight / WORKERS, limit), Case("through a transform", staged / WORKERS, limit)]


def _peak(transforms: Sequence[Xor]) -> int:
    """Peak of all Python allocations plus what the session has staged, in bytes; one direction is busy at a time."""
    geometry = KVGeometry("mha", 1, 1, PAGE_BYTES // 32, dtype="uint8", page_size=16)
    identity = Identity("bench", "declared:bench", "uint8", 16, "mha", 1, 1, geometry.head_dim)
    pool = make_host_pool(geometry, "page_first", PAGES)
    settings = SessionSettings(read_workers=WORKERS, write_workers=WORKERS)
    with tempfile.TemporaryDirectory() as root:
        session = open_session(
            "file", identity=identity, options={"root": f"{root}/kv"}, settings=settings, transforms=transforms
        )
        with session:
            session.register_host_pool(pool)
            slots = pool.alloc(PAGES)
            assert slots is not None
            hashes = page_hashes(np.arange(PAGES, dtype=np.uint32), 1)
            tracemalloc.start()
            try:
                assert all(session.set_v1(hashes, slots))
                assert all(session.get_v1(hashes, slots))
                peak = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
            staged = session.status().staged_bytes
            session.unregister_host_pool(pool)
    pool.close()
    return peak + staged


if __name__ == "__main__":
    for case in measure():
        print(case)
