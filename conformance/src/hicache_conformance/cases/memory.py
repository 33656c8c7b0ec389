"""Memory: what a store needs for a call it needs again for the next one; it does not grow."""

from __future__ import annotations

import ctypes
import gc
import sys
import tracemalloc
from collections.abc import Callable
from itertools import pairwise

from hicache_conformance.casebook import case
from hicache_conformance.driver import Driver
from hicache_conformance.harness import Harness
from hicache_conformance.verdict import NotApplicable, check

_ROUNDS, _TIMES = 6, 6
_OBJECTS_PER_ROUND = 1 << 10
"""Bytes of Python objects that may stay after a round of a dozen calls: less than a small dict for each."""
_PAGES = 3
_PAGE = 128 << 10


def _a_round(h: Harness, store: Driver, keys: list[str], shape: tuple[int, ...]) -> Callable[[], None]:
    """Every call on keys that are there and keys that are not; the store holds the same pages afterwards."""
    sources = [h.lend(key, shape) for key in keys]
    targets = [h.blank(shape) for _ in keys]
    small = [h.blank((h.stride, max(1, h.capabilities.alignment)))]
    missing = h.keys(len(keys), start=900)

    def work() -> None:
        store.set(keys, sources)
        if h.capabilities.replace:
            store.set(keys, sources, replace=True)
        store.exists([*keys, *missing])
        store.contains(keys)
        store.get(keys, targets)
        store.get(missing, targets)
        store.get(keys[:1], small)
        store.get([f"{h.namespace()}/../x"], small)
        store.scan(h.namespace())
        store.stats()

    return work


@case("core", "memory", rounds=1)
def repeated_calls_leave_no_objects(h: Harness) -> None:
    """The same calls over and over on the same keys: the Python objects that stay do not grow from round to round."""
    store = h.open()
    work = _a_round(h, store, h.keys(_PAGES), h.shape(2, 512))
    ours = not tracemalloc.is_tracing()
    if ours:
        tracemalloc.start()
    try:
        sizes = []
        for _ in range(_TIMES):
            for _ in range(_ROUNDS):
                work()
            gc.collect()
            sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        if ours:
            tracemalloc.stop()
    grown = [after - before for before, after in pairwise(sizes[1:])]
    check(
        min(grown) < _OBJECTS_PER_ROUND * _ROUNDS,
        f"Python's memory grew by {grown} bytes in {_ROUNDS} equal rounds each, though the keys stay the same",
    )


@case("core", "memory", rounds=1)
def repeated_calls_leave_no_pages_in_memory(h: Harness) -> None:
    """The same calls over and over with pages of 256 KiB: the process does not grow by pages."""
    _resident()
    store = h.open()
    shape = h.shape(2, _PAGE)
    work = _a_round(h, store, h.keys(_PAGES), shape)
    sizes = []
    for _ in range(_TIMES):
        for _ in range(_ROUNDS):
            work()
        sizes.append(_resident())
    grown = [after - before for before, after in pairwise(sizes[1:])]
    limit = _ROUNDS * sum(shape) // 2
    check(
        min(grown) < limit,
        f"the process grew by {grown} bytes in {_ROUNDS} equal rounds each; half a page a round is {limit}",
    )


def _resident() -> int:
    """Bytes that this process has written, in memory or swapped out, after what is free was given back.

    Not the pages of mapped files, which the system drops when it likes. NotApplicable where /proc does not tell.
    """
    gc.collect()
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).malloc_trim(0)
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            told = dict(line.split(":", 1) for line in file)
    except FileNotFoundError:
        told = {}
    if "RssAnon" not in told:
        raise NotApplicable("the memory of a process can only be told where /proc/self/status is there")
    return sum(int(told[name].split()[0]) << 10 for name in ("RssAnon", "RssShmem", "VmSwap") if name in told)
