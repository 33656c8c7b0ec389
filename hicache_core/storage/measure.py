"""How fast a store is through a whole session: sealed, verified, straight from and into a host pool."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import suppress

import msgspec
import numpy as np

from hicache_core.errors import NotSupportedError
from hicache_core.keys import page_hashes
from hicache_core.namespace import Identity
from hicache_core.plugin.select import BackendChoice
from hicache_core.pools.geometry import KVGeometry
from hicache_core.pools.host import HostPool, make_host_pool
from hicache_core.storage.opening import open_session
from hicache_core.storage.session import StorageSession
from hicache_core.types import Outcome, Slots

GRAIN = 4096
"""Page sizes that can be measured are multiples of this."""


class Speed(msgspec.Struct, frozen=True):
    """Medians over the rounds, for one page size."""

    page_bytes: int
    pages: int
    rounds: int
    set_mb_per_s: float
    get_mb_per_s: float
    exists_us: float
    """Microseconds for one query of all pages."""
    memcpy_mb_per_s: float
    """numpy copying the same pages in the same run: what no store can beat by much."""
    failed: int
    """Pages whose outcome was not a success, over all rounds."""


def measure_backend(
    choice: BackendChoice,
    page_bytes: int,
    *,
    pages: int = 128,
    rounds: int = 5,
    on_round: Callable[[], None] = lambda: None,
) -> Speed:
    """Set, find and get `pages` fresh pages per round under a namespace of its own, which is cleared at the end
    where the store can.

    page_bytes: a multiple of 4,096. Raises what opening the store raises.
    """
    geometry, identity = bench_shape(page_bytes)
    pool = make_host_pool(geometry, "page_first", 2 * pages)
    try:
        with open_session(choice, identity=identity) as session:
            session.register_host_pool(pool)
            try:
                return _measure(session, pool, pages, rounds, on_round)
            finally:
                with suppress(NotSupportedError):
                    session.clear()
                session.unregister_host_pool(pool)
    finally:
        with suppress(BufferError):  # an SDK may hold a view a little longer; the memory goes with the last one
            pool.close()


def bench_shape(page_bytes: int) -> tuple[KVGeometry, Identity]:
    """A model whose pages have `page_bytes` (a multiple of 4,096), in a namespace that no one else uses."""
    geometry = KVGeometry("mha", 1, 1, page_bytes // 32, dtype="uint8", page_size=16)
    identity = Identity(
        model="hicache-bench",
        weights=f"declared:{time.time_ns()}",
        dtype="uint8",
        page_size=16,
        kind="mha",
        layer_num=1,
        head_num=1,
        head_dim=geometry.head_dim,
    )
    return geometry, identity


def _measure(session: StorageSession, pool: HostPool, pages: int, rounds: int, on_round: Callable[[], None]) -> Speed:
    source, target = pool.alloc(pages), pool.alloc(pages)
    assert source is not None
    assert target is not None
    rows = pool.buffer.reshape(-1)
    rows[:] = np.random.default_rng(1).integers(0, 256, rows.size, dtype=np.uint8)
    timings: list[tuple[float, float, float, float]] = []
    failed = 0
    for number in range(rounds + 1):  # the first one warms up
        hashes = page_hashes(np.full(pages, number, np.uint32), 1)
        set_s, stored = _timed(lambda names=hashes: session.set_v1(names, source))  # type: ignore[misc]
        exists_s, _ = _timed(lambda names=hashes: session.exists(names))  # type: ignore[misc]
        get_s, read = _timed(lambda names=hashes: session.get_v1(names, target))  # type: ignore[misc]
        copy_s, _ = _timed(lambda: _copy(pool, source, target))
        failed += sum(not outcome for outcome in (*stored, *read) if isinstance(outcome, Outcome))
        if number:
            timings.append((set_s, get_s, exists_s, copy_s))
        on_round()
    set_s, get_s, exists_s, copy_s = (statistics.median(column) for column in zip(*timings, strict=True))
    megabytes = pages * pool.page_nbytes / 1e6
    return Speed(
        page_bytes=pool.page_nbytes,
        pages=pages,
        rounds=rounds,
        set_mb_per_s=megabytes / set_s,
        get_mb_per_s=megabytes / get_s,
        exists_us=exists_s * 1e6,
        memcpy_mb_per_s=megabytes / copy_s,
        failed=failed,
    )


def _copy(pool: HostPool, source: Slots, target: Slots) -> None:
    for from_page, to_page in zip(pool.pages(source), pool.pages(target), strict=True):
        for from_region, to_region in zip(from_page, to_page, strict=True):
            to_region[:] = from_region


def _timed(call: Callable[[], object]) -> tuple[float, list[object]]:
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result if isinstance(result, list) else []
