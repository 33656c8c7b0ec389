"""Lending memory: registered, taken back, lent again; nothing is held that was taken back."""

from __future__ import annotations

import threading

import numpy as np

from hicache_conformance.casebook import case
from hicache_conformance.driver import Driver
from hicache_conformance.harness import Harness
from hicache_conformance.material import Lent
from hicache_conformance.pools import WatchedPool, usual_form
from hicache_conformance.proxy import Counting
from hicache_conformance.sessioning import Opened, session_on
from hicache_conformance.verdict import CaseFailed, check, check_equal
from hicache_core.errors import MisuseError
from hicache_core.types import GET_OUTCOMES, Outcome

_STORED, _HIT = Outcome.STORED, Outcome.HIT


def _works(s: Opened, pool: WatchedPool, start: int, what: str) -> None:
    """Four new pages there and back, by v1."""
    hashes = s.hashes(4, start=start)
    for slot, page_hash in enumerate(hashes):
        pool.fill(slot, page_hash)
    check_equal(s.session.set_v1(hashes, np.arange(4)), [_STORED] * 4, f"set_v1 {what}")
    pool.poison()
    check_equal(s.session.get_v1(hashes, np.array([3, 2, 1, 0])), [_HIT] * 4, f"get_v1 {what}")
    for slot, page_hash in zip((3, 2, 1, 0), hashes, strict=True):
        pool.expect(slot, page_hash, what)
    s.expect_no_second_read(what)


class Direct:
    """A driver with a pool and seals for its slots, past the core."""

    def __init__(self, h: Harness, count: int = 4) -> None:
        self.h = h
        self.store: Driver = h.open()
        self.pool = WatchedPool(h, count, usual_form(h))

    def some_seals(self, count: int) -> Lent:
        """Buffers for the seals of a call, as a session lends them."""
        return Lent((self.h.stride,) * count, alignment=self.h.capabilities.alignment)

    def put(self, keys: list[str]) -> list[Outcome]:
        """Each key's bytes by v1, from slots 0, 1, …"""
        for slot, key in enumerate(keys):
            self.pool.fill(slot, key)
        return self.store.set_v1(keys, self.pool.view, np.arange(len(keys)), self.some_seals(len(keys)))

    def expect(self, keys: list[str], what: str) -> None:
        """Each key is a HIT by v1, with its bytes."""
        self.pool.poison()
        seals = self.some_seals(len(keys))
        outcomes = self.store.get_v1(keys, self.pool.view, np.arange(len(keys)), seals)
        check_equal(outcomes, [_HIT] * len(keys), f"get_v1 {what}")
        for slot, key in enumerate(keys):
            self.pool.expect(slot, key, what)


@case("zero_copy", "register_host_pool, unregister_host_pool")
def a_pool_can_be_lent_again(h: Harness) -> None:
    """Registered, used, unregistered, five times over, with another pool under the same name in between."""
    s = session_on(h)
    first = WatchedPool(h, 4, usual_form(h))
    second = WatchedPool(h, 6, usual_form(h))
    for turn in range(5):
        pool = second if turn == 2 else first
        s.lend(pool)
        _works(s, pool, 100 * turn, f"after the pool was registered {turn + 1} times")
        s.take_back(pool)
    try:
        s.session.get_v1(s.hashes(1), np.arange(1))
    except MisuseError:
        pass
    else:
        raise CaseFailed("get_v1 after the pool was unregistered is not refused")
    s.expect_hits(s.hashes(4), shape=(first.page_nbytes,))


@case("zero_copy", "register_host_pool, register_region")
def lending_twice_is_harmless_or_a_clear_error(h: Harness) -> None:
    """The same pool, or the same region, registered twice: nothing happens, or an error that says what is wrong."""
    direct = Direct(h)
    store, view = direct.store, direct.pool.view
    store.lend_pool(view)
    _twice(store, "register_host_pool", view=view)
    keys = h.keys(4)
    check_equal(direct.put(keys), [_STORED] * 4, "set_v1 after the pool was registered twice")
    direct.expect(keys, "after the pool was registered twice")
    if h.capabilities.registration == "region" and store.has("register_region"):
        region = Lent((h.stride, h.rounded(4096)), alignment=h.capabilities.alignment).region()
        check(store.refused("register_region", buffer=region) is None, "register_region is refused")
        _twice(store, "register_region", buffer=region)
        store.refused("unregister_region", buffer=region)
    direct.expect(keys, "after a region was registered twice")
    store.close()


def _twice(store: Driver, hook: str, **arguments: object) -> None:
    if not store.has(hook):
        return
    said = store.refused(hook, **arguments)
    check(
        said is None or len(said) > len("ValueError()") + 4,
        f"{hook} for the second time raises without a word: {said}",
    )


@case("zero_copy", "close, register_host_pool")
def closing_with_a_lent_pool_lets_go_of_it(h: Harness) -> None:
    """close without unregister: it works, twice, and the pool's memory is its owner's again."""
    direct = Direct(h)
    direct.store.lend_pool(direct.pool.view)
    keys = h.keys(4)
    check_equal(direct.put(keys), [_STORED] * 4, "set_v1")
    direct.expect(keys, "before close")
    direct.store.pools.clear()  # so that the driver does not take it back first
    direct.store.close()
    direct.store.close()
    _let_go(direct.pool, "after close")


@case("zero_copy", "unregister_host_pool")
def a_pool_that_was_taken_back_is_held_by_no_one(h: Harness) -> None:
    """After unregister no one holds the pool's memory: its owner may unmap it; twelve times over."""
    s = session_on(h)
    for turn in range(12):
        pool = WatchedPool(h, 4, usual_form(h))
        s.lend(pool)
        if turn % 4 == 0:
            _works(s, pool, 100 * turn, "in a pool that is given back")
        s.take_back(pool)
        _let_go(pool, "after unregister")


def _let_go(pool: WatchedPool, when: str) -> None:
    check(not pool.held_elsewhere(), f"someone still holds the pool's memory {when}")


@case("zero_copy", "unregister_host_pool, threads and lent memory", rounds=1)
def taking_a_pool_back_while_calls_run_harms_nothing(h: Harness) -> None:
    """unregister while another thread reads by v1: both come back, what was a HIT is right, the store goes on."""
    direct = Direct(h, 8)
    store, pool = direct.store, direct.pool
    store.lend_pool(pool.view)
    keys = h.keys(8)
    check_equal(direct.put(keys), [_STORED] * 8, "set_v1")
    done, called = threading.Event(), threading.Semaphore(0)
    wrong: list[str] = []

    def read() -> None:
        while not done.is_set():
            called.release()
            pool.poison()
            try:
                outcomes = store.get_v1(keys, pool.view, np.arange(8), direct.some_seals(8))
            except CaseFailed:
                continue  # refused while the pool was not lent: as good as a miss
            wrong.extend(o.name for o in outcomes if o not in GET_OUTCOMES)
            for slot, (key, outcome) in enumerate(zip(keys, outcomes, strict=True)):
                if outcome is _HIT:
                    pool.expect(slot, key, "a HIT while the pool was being taken back")

    def take_back() -> None:
        try:
            for _ in range(10):
                store.take_back_pool(pool.view)
                _let_calls_begin(called, 2, h.patience)
                store.lend_pool(pool.view)
                _let_calls_begin(called, 1, h.patience)
        finally:
            done.set()

    h.together(read, take_back)
    check(not wrong, f"outcomes that get may not give: {wrong[:3]}")
    direct.expect(keys, "after the pool was taken back and lent again")
    store.close()


def _let_calls_begin(called: threading.Semaphore, count: int, patience: float) -> None:
    """Wait until the reader has begun that many more calls; the last of them may still be on its way."""
    while called.acquire(blocking=False):
        continue
    for _ in range(count):
        called.acquire(timeout=patience)


@case("core", "register_region, register_host_pool", rounds=1)
def what_is_lent_is_taken_back(h: Harness) -> None:
    """A session lends each region and pool once and takes every one of them back, at the latest when it closes."""
    s = session_on(h, wrap=Counting)
    counting: Counting = s.between
    pool = s.pool(4)
    _works(s, pool, 0, "through a counting layer")
    s.put(s.hashes(4, start=50))
    s.expect_hits(s.hashes(4, start=50))
    other = WatchedPool(h, 4, usual_form(h))
    s.take_back(pool)
    s.lend(other)
    check(s.session.close().clean, "close leaves something behind")
    check_equal(counting.pools, {}, "pools that are lent after close, and how often")
    check_equal(counting.regions, {}, "regions that are lent after close, and how often")
    check(not counting.strange, f"taken back without having been lent: {counting.strange[:3]}")
    check_equal(counting.lent_pools, 2, "pools that were lent")
    if h.capabilities.registration == "region":
        check(counting.lent_regions > 0, "the store wants regions registered, and none was")
