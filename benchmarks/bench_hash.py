"""Page hashes of a 128k-token prompt against a bare hashlib loop over the same bytes."""

from __future__ import annotations

import hashlib
import statistics
import time
from collections.abc import Callable

import numpy as np

from hicache_core.keys import page_hashes

TOKENS, PAGE = 131_072, 64


def bare_loop(data: bytes, step: int) -> list[str]:
    """The least that any chained page hash in Python does: one digest a page, fed with the one before."""
    hashes, previous = [], b""
    for start in range(0, len(data), step):
        state = hashlib.sha256(previous)
        state.update(data[start : start + step])
        previous = state.digest()
        hashes.append(state.hexdigest())
    return hashes


def seconds(call: Callable[[], object]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def measure(rounds: int = 7) -> dict[str, float]:
    """Medians in milliseconds of both, rounds alternating, and the median of the ratios."""
    tokens = np.random.default_rng(1).integers(0, 150_000, TOKENS, dtype=np.uint32)
    data = tokens.tobytes()
    assert page_hashes(tokens, PAGE) == bare_loop(data, 4 * PAGE)
    pairs = [
        (seconds(lambda: page_hashes(tokens, PAGE)), seconds(lambda: bare_loop(data, 4 * PAGE)))
        for _ in range(rounds)
    ]
    return {
        "ours_ms": statistics.median(a for a, _ in pairs) * 1e3,
        "bare_ms": statistics.median(b for _, b in pairs) * 1e3,
        "ratio": statistics.median(a / b for a, b in pairs),
    }


if __name__ == "__main__":
    print(measure())
