"""close() and leaks: what a store took, it gives back."""

from __future__ import annotations

import gc
import os
import threading

from hicache_conformance.casebook import case
from hicache_conformance.driver import Driver
from hicache_conformance.harness import Harness
from hicache_conformance.material import Lent
from hicache_conformance.verdict import NotApplicable, check, check_equal


def open_descriptors() -> dict[int, str]:
    """The descriptors of this process and what they point at. NotApplicable where /proc is not there."""
    gc.collect()  # what only a cycle holds is not leaked
    try:
        names = os.listdir("/proc/self/fd")
    except FileNotFoundError:
        raise NotApplicable("descriptors can only be counted where /proc is there") from None
    found = {}
    for name in names:
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue  # the descriptor of the listing itself
    return found


def _some_of_everything(h: Harness, store: Driver, start: int) -> None:
    keys = h.keys(4, start=start)
    h.store(store, keys)
    h.put(store, keys, version=1)
    store.exists([*keys, h.key(start + 1000)])
    h.expect_hits(store, keys)
    store.get([h.key(start + 1000)], [h.blank()])
    store.get(keys[:1], [h.blank((h.stride, max(1, h.capabilities.alignment)))])
    store.get([f"{h.namespace()}/../x"], [h.blank()])
    store.contains(keys)
    store.scan(h.namespace())
    store.stats()
    store.delete(keys[:1])


@case("core", "close")
def close_is_idempotent(h: Harness) -> None:
    """close may be called again, also by several threads, also on a store that was never used."""
    used, unused = h.open(), h.open()
    h.store(used, h.keys(2))
    for store in (used, unused):
        for _ in range(3):
            store.close()
    both = h.open()
    h.together(both.close, both.close, both.close)


@case("core", "close")
def close_leaves_no_thread(h: Harness) -> None:
    """Every thread that the store started has ended when close has returned (or ends by itself in a moment)."""
    before = set(threading.enumerate())
    store = h.open()
    _some_of_everything(h, store, 0)
    store.close()
    for thread in set(threading.enumerate()) - before:
        thread.join(min(5.0, h.patience))
        check(not thread.is_alive(), f"thread {thread.name!r} is still running after close")


@case("core", "close", rounds=1)
def close_leaves_no_descriptor(h: Harness) -> None:
    """Ten times opened, used and closed: no descriptor is left over."""
    _cycle(h, 0)
    before = open_descriptors()
    for n in range(1, 11):
        _cycle(h, 10 * n)
    after = open_descriptors()
    check(
        len(after) <= len(before) + 3,
        f"{len(after) - len(before)} more descriptors after 10 cycles of open and close:"
        f" {sorted(set(after.values()) - set(before.values()))[:5]}",
    )


def _cycle(h: Harness, start: int) -> None:
    store = h.open()
    _some_of_everything(h, store, start)
    store.close()


@case("core", "close", rounds=1)
def a_call_leaks_no_descriptor(h: Harness) -> None:
    """Forty more rounds of every call leave as many descriptors open as the first ten."""
    store = h.open()
    for n in range(10):
        _some_of_everything(h, store, 10 * n)
    before = open_descriptors()
    for n in range(10, 50):
        _some_of_everything(h, store, 10 * n)
    after = open_descriptors()
    check(
        len(after) <= len(before) + 20,
        f"{len(after) - len(before)} more descriptors after 40 rounds of every call:"
        f" {sorted(set(after.values()) - set(before.values()))[:5]}",
    )


@case("core", "close", rounds=1)
def a_store_starts_no_thread_per_call(h: Harness) -> None:
    """Forty more rounds of every call leave as many threads running as the first ten."""
    store = h.open()
    for n in range(10):
        _some_of_everything(h, store, 10 * n)
    before = threading.active_count()
    for n in range(10, 50):
        _some_of_everything(h, store, 10 * n)
    grown = threading.active_count() - before
    check(grown <= 20, f"{grown} more threads after 40 rounds of every call")


@case("core", "close, threads and lent memory")
def close_lets_go_of_lent_memory(h: Harness) -> None:
    """After close no buffer that was lent to a call is held any more: its owner may free or resize it."""
    store = h.open()
    keys = h.keys(6)
    pages: list[Lent] = [h.lend(key) for key in keys]
    read = [h.blank() for _ in keys]
    store.set(keys, pages)
    store.get(keys, read)
    store.get([h.key(100)], read[:1])
    store.close()
    gc.collect()
    held = sum(page.held_elsewhere() for page in [*pages, *read])
    check_equal(held, 0, "pages whose buffers someone still holds after close")
