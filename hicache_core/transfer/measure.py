"""`python -m hicache_core.transfer.measure`: what copying pages costs here, by layout, way and order of slots.

Where the thresholds of `cpu` come from: 64 pages of the reference model (30 layers, 16 tokens, 3 heads of 64 fp32;
47 MB of K and V), best of the rounds, in milliseconds; alone, and beside a thread that never lets the GIL go.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from rich.console import Console
from rich.table import Table

from hicache_core.pools.device.numpy_pool import NumpyDevicePool
from hicache_core.pools.geometry import KVGeometry
from hicache_core.pools.host import make_host_pool
from hicache_core.switching import share_the_gil
from hicache_core.transfer import cpu
from hicache_core.types import Slots

GEOMETRY = KVGeometry("mha", 30, 3, 64, dtype="float32", page_size=16)
POOL_PAGES, PAGES, ROUNDS = 256, 64, 15
LAYOUTS = ("layer_first", "page_first", "page_first_direct", "page_head")
WAYS = {"runs": 1, "scattered": 1 << 62}


def slot_orders() -> dict[str, tuple[Slots, Slots]]:
    """(host slots, device slots): at random, and one run on both sides."""
    random = np.random.default_rng(0)
    return {
        "random": (random.permutation(POOL_PAGES)[:PAGES], random.permutation(POOL_PAGES)[:PAGES]),
        "consecutive": (np.arange(10, 10 + PAGES), np.arange(60, 60 + PAGES)),
    }


def best(copy: Callable[[], None], rounds: int = ROUNDS) -> float:
    """Shortest of `rounds` calls, in milliseconds."""
    shortest = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        copy()
        shortest = min(shortest, time.perf_counter() - start)
    return shortest * 1e3


@contextmanager
def busy_thread() -> Iterator[None]:
    """A thread that never lets the GIL go by itself."""
    stop = threading.Event()

    def spin() -> None:
        while not stop.is_set():
            pass

    thread = threading.Thread(target=spin)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def measure(layout: str, table: Table) -> None:
    """One layout's rows of the table."""
    host, device = make_host_pool(GEOMETRY, layout, POOL_PAGES), NumpyDevicePool(GEOMETRY, POOL_PAGES)
    device.write_pages(np.arange(POOL_PAGES), np.ones((POOL_PAGES, device.page_nbytes), dtype=np.uint8))
    _rows(cpu.CpuCopier(host, device), layout, table)
    host.close()


def _rows(copier: cpu.CpuCopier, layout: str, table: Table) -> None:
    for order, (host_slots, device_slots) in slot_orders().items():

        def backup(at: Slots = host_slots, come: Slots = device_slots) -> None:
            copier.backup(at, come, None)

        def load(at: Slots = host_slots, into: Slots = device_slots) -> None:
            for layer in range(GEOMETRY.layer_num):
                copier.load_layer(layer, at, into, None)

        for way, least in WAYS.items():
            cpu.RUN_BYTES = least
            alone = best(backup), best(load)
            with busy_thread():
                beside = best(backup, 5), best(load, 5)
            table.add_row(layout, order, way, *(f"{number:.1f}" for number in (*alone, *beside)))


def main() -> None:
    """Print the table."""
    share_the_gil()
    table = Table("layout", "slots", "way", "backup", "load", "backup, busy", "load, busy")
    for layout in LAYOUTS:
        measure(layout, table)
    ones = np.ones(PAGES * GEOMETRY.page_nbytes, dtype=np.uint8)
    into = ones.copy()
    table.add_row("one copy", "", "", f"{best(lambda: np.copyto(into, ones)):.1f}", "", "", "")
    Console().print(table)


if __name__ == "__main__":
    main()
