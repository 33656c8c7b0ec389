"""Throughput through the SGLang door: v1, pages of SGLang's own host pool, file backend, 1 MiB pages.

Run it in an interpreter that has SGLang: `. .peers/sglang/env.sh; $PEER_PY benchmarks/bench_sglang_door.py`.
`direct` is a session over the same pool, as an engine that owns its pool drives it; `lent` the same told that the
pool is only lent, as SGLang's is (contract, section 8: a read that outlives its deadline must not touch it); `door`
is HiCacheDynamicStorage with token-level indices. Rounds alternate and the order turns; every number is a median.
The ratio is the door's throughput by that of `direct`; above 1 the door is faster. `ratio_of_cpu` compares the
processor time of all threads instead: on a machine that does other things too it is the steadier one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost

from hicache_core.adapters.sglang import HiCacheDynamicStorage
from hicache_core.adapters.sglang.pools import EnginePool
from hicache_core.namespace import Identity
from hicache_core.pools.slots import expand
from hicache_core.storage import SessionSettings, StorageSession, open_session
from hicache_core.types import PoolName, Slots

PAGE_SIZE, LAYERS, HEADS, DIM = 64, 8, 8, 64
"""With float16, K and V: 1 MiB a page."""
TARGET = 0.9

Move = Callable[[list[str], Slots], list[Any]]


def make_pool(pages: int, layout: str) -> Any:
    """SGLang's MHA host pool over plain memory; its constructor wants a device."""
    pool: Any = object.__new__(MHATokenToKVPoolHost)
    tokens = pages * PAGE_SIZE
    row = (HEADS, DIM)
    dims = {
        "layer_first": (2, LAYERS, tokens, *row),
        "page_first": (2, tokens, LAYERS, *row),
        "page_first_direct": (2, pages, LAYERS, PAGE_SIZE, *row),
    }[layout]
    pool.__dict__ |= {
        "layout": layout,
        "page_size": PAGE_SIZE,
        "size": tokens,
        "page_num": pages,
        "layer_num": LAYERS,
        "start_layer": 0,
        "end_layer": LAYERS,
        "head_num": HEADS,
        "head_dim": DIM,
        "v_head_dim": DIM,
        "dtype": torch.float16,
        "device": "cpu",
        "pin_memory": False,
        "kv_buffer": torch.randint(-9, 9, dims, dtype=torch.int16).view(torch.float16),
    }
    return pool


def make_session(root: str, pool: Any, *, lent: bool) -> StorageSession:
    """A session over the pool's view."""
    identity = Identity("bench", "declared:bench", "float16", PAGE_SIZE, "mha", LAYERS, HEADS, DIM)
    settings = SessionSettings(timeout=600.0, lent_pools=lent)
    session = open_session("file", identity=identity, options={"root": root}, settings=settings)
    session.register_host_pool(EnginePool(PoolName.KV, pool))
    return session


def make_door(root: str, pool: Any) -> HiCacheDynamicStorage:
    """The door, as SGLang makes it."""
    own = {"backend": "file", "options": {"root": root}, "weights": "declared:bench", "timeout": 600.0}
    extra = {"interface_v1": 1, "hicache": own}
    door = HiCacheDynamicStorage(
        HiCacheStorageConfig(0, 1, 0, 1, 0, 1, False, False, True, "bench", extra_config=extra), {}
    )
    door.register_mem_pool_host(pool)
    return door


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Median GB/s of each side, and the ratios."""
    pages, count = 2 * arguments.pages + 1, arguments.pages
    pool = make_pool(pages, arguments.layout)
    times: dict[str, dict[str, list[float]]] = {}
    with ExitStack() as stack:
        top = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=arguments.dir)))
        sides: dict[str, tuple[Move, Move]] = {}
        for name, lent in (("direct", False), ("lent", True)):
            session = stack.enter_context(make_session(str(top / name), pool, lent=lent))
            sides[name] = (session.set_v1, session.get_v1)
        door = make_door(str(top / "door"), pool)
        stack.callback(door.close)
        tokens = {slot: torch.from_numpy(expand(slot_array(slot, count), PAGE_SIZE)) for slot in (0, count)}
        sides["door"] = (
            lambda keys, slots: door.batch_set_v1(keys, tokens[int(slots[0])]),
            lambda keys, slots: door.batch_get_v1(keys, tokens[int(slots[0])]),
        )
        names = list(sides)
        for turn in range(arguments.rounds + 1):
            for name in names[turn % 3 :] + names[: turn % 3]:
                seconds = one_round(sides[name], turn, count, pool)
                if turn:  # the first one warms up
                    for operation, value in seconds.items():
                        times.setdefault(name, {}).setdefault(operation, []).append(value)
    nbytes = count * PAGE_SIZE * LAYERS * HEADS * DIM * 4
    result: dict[str, Any] = {
        name: {
            operation: round(nbytes / statistics.median(values) / 1e9, 3)
            for operation, values in found.items()
            if not operation.endswith("_cpu")
        }
        for name, found in times.items()
    }
    result["ratio"] = {operation: round(ratio(times, operation), 3) for operation in ("set", "get")}
    result["ratio_of_cpu"] = {o: round(ratio(times, f"{o}_cpu"), 3) for o in ("set", "get")}
    return result | {"layout": arguments.layout, "target": TARGET}


def ratio(times: dict[str, dict[str, list[float]]], operation: str) -> float:
    """Median of the rounds' own ratios: the machine drifts, the sides of a round share its weather."""
    pairs = zip(times["direct"][operation], times["door"][operation], strict=True)
    return statistics.median(direct / door for direct, door in pairs)


def one_round(side: tuple[Move, Move], turn: int, count: int, pool: Any) -> dict[str, float]:
    """Store `count` pages from the front of the pool, read them into its second half, compare."""
    put, take = side
    keys = [f"{turn:032x}{number:032x}" for number in range(count)]
    marks = [(time.perf_counter(), time.process_time())]
    stored = put(keys, slot_array(0, count))
    marks.append((time.perf_counter(), time.process_time()))
    found = take(keys, slot_array(count, count))
    marks.append((time.perf_counter(), time.process_time()))
    assert all(stored), stored
    assert all(found), found
    for slot in (0, count // 2, count - 1):
        source = pool.get_data_page(slot * PAGE_SIZE)
        target = pool.get_data_page((slot + count) * PAGE_SIZE)
        assert torch.equal(source.view(torch.int16), target.view(torch.int16))
        target.zero_()
    (start, start_cpu), (middle, middle_cpu), (end, end_cpu) = marks
    cpu = {"set_cpu": middle_cpu - start_cpu, "get_cpu": end_cpu - middle_cpu}
    return {"set": middle - start, "get": end - middle} | cpu


def slot_array(first: int, count: int) -> Slots:
    """Adjacent slots."""
    return np.arange(first, first + count, dtype=np.int64)


def main() -> None:
    """Measure, print, say whether the target is reached."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pages", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--layout", default="page_first")
    parser.add_argument("--dir", default=None, help="parent of the stores; default: the temporary directory")
    arguments = parser.parse_args()
    result = measure(arguments)
    print(json.dumps(result, indent=1))
    missed = [name for name, value in result["ratio"].items() if value < TARGET]
    print(f"below the target of {TARGET}: {', '.join(missed)}" if missed else f"target of {TARGET} reached")


if __name__ == "__main__":
    main()
