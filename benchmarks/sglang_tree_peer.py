"""SGLang's tree, one measurement per line of input; runs in SGLang's own environment, started by bench_tree.py.

usage: sglang_tree_peer.py DIR CORE, where DIR holds SGLang's side of the comparison (bench_tree.py, workloads.py).
Reads `disjoint` or `branching NODES`, answers `RESULT {json of microseconds}`.
"""

from __future__ import annotations

import json
import pathlib
import statistics
import sys
import time

DIR, CORE = pathlib.Path(sys.argv[1]), sys.argv[2]
sys.argv[1:] = []
exec((DIR / "bench_tree.py").read_text().split("for core in sys.argv")[0])  # build(), InsertParams, RadixKey, …
import workloads  # noqa: E402

CHUNK, FRESH = 60, 3  # as in bench_tree.py
_branching: dict = {}


def match_all(cache, keys) -> float:
    """Microseconds a match: the median over chunks, so that a busy machine's other work is left out."""
    times = []
    for first in range(0, len(keys), CHUNK):
        chunk = keys[first : first + CHUNK]
        start = time.perf_counter()
        for key in chunk:
            cache.match_prefix(MatchPrefixParams(key=RadixKey(key)))  # noqa: F821
        times.append((time.perf_counter() - start) / len(chunk) * 1e6)
    return statistics.median(times)


def insert_all(cache, alloc, keys) -> float:
    """Microseconds an insert, slots allocated on the way."""
    start = time.perf_counter()
    for key in keys:
        cache.insert(InsertParams(key=RadixKey(key), value=alloc.alloc(len(key))))  # noqa: F821
    return (time.perf_counter() - start) / len(keys) * 1e6


def disjoint() -> dict[str, float]:
    """Fresh trees; the median insert of several, since one takes only milliseconds in all."""
    keys, inserts = workloads.disjoint(), []
    for _ in range(FRESH):
        cache, alloc = build(CORE)  # noqa: F821
        inserts.append(insert_all(cache, alloc, keys))
    return {"insert": statistics.median(inserts), "match": match_all(cache, keys * 20)}


def branching(nodes: int) -> dict[str, float]:
    """The same tree each time."""
    if nodes not in _branching:
        keys = workloads.branching(nodes)
        cache, alloc = build(CORE, size=len(keys) * 2048 + 4096)  # noqa: F821
        insert_all(cache, alloc, keys)
        _branching[nodes] = cache, workloads.queries(keys)
    cache, sample = _branching[nodes]
    return {"match": match_all(cache, sample), "hot": match_all(cache, sample[:60] * 20)}


for line in sys.stdin:
    words = line.split()
    result = disjoint() if words[0] == "disjoint" else branching(int(words[1]))
    print("RESULT", json.dumps(result), flush=True)
