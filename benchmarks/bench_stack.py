"""The stack's own cost: a session over the bare memory backend, per batch of 128 sealed 4 KiB pages.

Both sides move the same bytes; the session adds keys, seals, checks, workers, breaker, pluggy and ledger. Rounds
alternate between the two, and a figure is the difference of the medians in microseconds.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable

from hicache_core.namespace import Identity
from hicache_core.storage import open_session
from hicache_core.storage.memory import MemoryBackend, MemoryStore
from hicache_core.types import IoContext

PAGES, PAGE_BYTES, SEAL_BYTES = 128, 4096, 64
LIMITS_US = {"set": 500.0, "get": 350.0, "exists": 70.0}
BATCHES = 60
"""Batches in one round of one side."""


def _identity() -> Identity:
    return Identity("bench", "declared:bench", "float16", 16, "mha", layer_num=2, head_num=2, head_dim=16)


def _fresh_hashes() -> Callable[[], list[str]]:
    numbers = itertools.count()
    return lambda: [hashlib.sha256(next(numbers).to_bytes(8, "little")).hexdigest() for _ in range(PAGES)]


def _median_us(call: Callable[[], object], prepare: Callable[[], None] = lambda: None) -> float:
    times = []
    for _ in range(BATCHES):
        prepare()
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


def measure(rounds: int = 7) -> dict[str, float]:
    """Microseconds per batch: `{operation}_bare_us`, `{operation}_session_us`, `{operation}_cost_us`."""
    fresh = _fresh_hashes()
    payload = [memoryview(bytearray(hashlib.sha256(bytes([i])).digest() * (PAGE_BYTES // 32))) for i in range(PAGES)]
    pages = [[page] for page in payload]
    sealed = [[memoryview(bytearray(SEAL_BYTES)), page] for page in payload]
    bare = MemoryBackend(MemoryStore(), None)
    session = open_session("memory", identity=_identity())
    ctx = IoContext()
    hashes = fresh()
    keys = [f"{session.namespace}/{h}.kv.l0-2h0-2" for h in hashes]
    bare.batch_set(keys, sealed, ctx)
    session.set(hashes, pages)
    new: list[str] = []

    def renew() -> None:
        new[:] = fresh()

    def renew_keys() -> None:
        new[:] = [f"{session.namespace}/{h}.kv.l0-2h0-2" for h in fresh()]

    sides: dict[str, tuple[Callable[[], float], Callable[[], float]]] = {
        "set": (
            lambda: _median_us(lambda: bare.batch_set(new, sealed, ctx), renew_keys),
            lambda: _median_us(lambda: session.set(new, pages), renew),
        ),
        "get": (
            lambda: _median_us(lambda: bare.batch_get(keys, sealed, ctx)),
            lambda: _median_us(lambda: session.get(hashes, pages)),
        ),
        "exists": (
            lambda: _median_us(lambda: bare.batch_exists(keys)),
            lambda: _median_us(lambda: session.exists(hashes)),
        ),
    }
    found: dict[str, float] = {}
    for operation, (bare_side, session_side) in sides.items():
        pairs = [(bare_side(), session_side()) for _ in range(rounds)]
        bare_us, session_us = (statistics.median(column) for column in zip(*pairs, strict=True))
        found[f"{operation}_bare_us"] = bare_us
        found[f"{operation}_session_us"] = session_us
        found[f"{operation}_cost_us"] = session_us - bare_us
    bare.close()
    session.close()
    return found


def main() -> int:
    """Print a table (or JSON with `--json`); 1 where a limit is exceeded."""
    found = measure()
    if "--json" in sys.argv[1:]:
        print(json.dumps(found))
    else:
        print(f"{'operation':10} {'bare us':>10} {'session us':>11} {'cost us':>9} {'limit us':>9}")
        for operation, limit in LIMITS_US.items():
            row = [found[f"{operation}_{what}_us"] for what in ("bare", "session", "cost")]
            print(f"{operation:10} {row[0]:10.1f} {row[1]:11.1f} {row[2]:9.1f} {limit:9.0f}")
    return int(any(found[f"{operation}_cost_us"] > limit for operation, limit in LIMITS_US.items()))


if __name__ == "__main__":
    sys.exit(main())
