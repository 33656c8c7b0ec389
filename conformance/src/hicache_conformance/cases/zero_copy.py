"""Zero-copy: pages straight from and into a registered pool, of every kind and layout; nothing beside them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hicache_conformance.casebook import case
from hicache_conformance.cases.registration import Direct
from hicache_conformance.harness import Harness
from hicache_conformance.material import Lent, page_bytes
from hicache_conformance.pools import Form, WatchedPool, forms, usual_form
from hicache_conformance.sessioning import Opened, session_on
from hicache_conformance.verdict import CaseFailed, NotApplicable, Skipped, check, check_bytes, check_equal
from hicache_core.errors import ConfigError
from hicache_core.pools.layouts import LAYOUTS
from hicache_core.types import Outcome, PoolName, PoolTransfer, Slots

PATHS = ("generic", "v1", "v2")
_STORED, _HIT, _MISS = Outcome.STORED, Outcome.HIT, Outcome.MISS


def each_form(h: Harness) -> list[Form]:
    """Every kind of pool in every layout that the store takes; Skipped where there is none."""
    found = forms(h.capabilities.layouts)
    if not found:
        raise Skipped(f"the store takes none of the core's layouts: {h.capabilities.layouts}")
    return found


def write(s: Opened, path: str, hashes: Sequence[str], pool: WatchedPool, slots: Slots) -> list[Outcome]:
    """Store pages of the pool by one of the paths."""
    if path == "v1":
        return s.session.set_v1(hashes, slots)
    if path == "v2":
        return s.session.set_v2([PoolTransfer(PoolName.KV, hashes, slots)])[PoolName.KV]
    pages = []
    for slot in slots.tolist():
        page = _flat(s.h, pool)
        page.write(pool.data(slot))
        pages.append(page)
    return s.session.set(hashes, [page.buffers for page in pages])


def read(s: Opened, path: str, hashes: Sequence[str], pool: WatchedPool, slots: Slots) -> list[Outcome]:
    """Fill pages of the pool by one of the paths; by the generic one, only those that are a HIT."""
    if path == "v1":
        return s.session.get_v1(hashes, slots)
    if path == "v2":
        return s.session.get_v2([PoolTransfer(PoolName.KV, hashes, slots)])[PoolName.KV]
    pages = [_flat(s.h, pool) for _ in hashes]
    outcomes = s.session.get(hashes, [page.buffers for page in pages])
    for page, outcome, slot in zip(pages, outcomes, slots.tolist(), strict=True):
        if outcome is _HIT:
            pool.view.set_from_flat_data_page(slot, page.data())
    return outcomes


def _flat(h: Harness, pool: WatchedPool) -> Lent:
    return h.blank((pool.page_nbytes,))


@case("zero_copy", "batch_set_v1, batch_get_v1: layouts")
def every_layout_of_every_pool_is_carried(h: Harness) -> None:
    """K and V alike, K and V of different length, MLA; in each layout the store takes: every byte, in its place."""
    s = session_on(h)
    for n, form in enumerate(each_form(h)):
        pool = s.pool(8, form=form)
        hashes = s.hashes(5, start=100 * n)
        slots = np.array(h.rng.sample(range(8), 5), np.int64)
        for page_hash, slot in zip(hashes, slots.tolist(), strict=True):
            pool.fill(slot, page_hash)
        check_equal(s.session.set_v1(hashes, slots), [_STORED] * 5, f"set_v1 of {form} pages")
        pool.poison()
        others = np.array(h.rng.sample(range(8), 5), np.int64)
        check_equal(s.session.get_v1(hashes, others), [_HIT] * 5, f"get_v1 of {form} pages")
        for page_hash, slot in zip(hashes, others.tolist(), strict=True):
            pool.expect(slot, page_hash, "get_v1")
        pool.expect_untouched(others.tolist(), "get_v1")
        s.expect_no_second_read(str(form))
        s.take_back(pool)


@case("zero_copy", "layouts")
def a_layout_that_is_not_taken_is_refused(h: Harness) -> None:
    """A pool in a layout that the store does not declare is a ConfigError that names those it takes."""
    takes = h.capabilities.layouts
    s = session_on(h)
    for form in forms(None):
        if takes is None or form.layout in takes:
            continue
        pool = WatchedPool(h, 2, form)
        try:
            s.session.register_host_pool(pool.view)
        except ConfigError as error:
            check(all(name in str(error) for name in takes), f"the refusal of {form} does not name {takes}: {error}")
        else:
            raise CaseFailed(f"the store does not declare layout {form.layout}, but a {form} pool was registered")
    known = set(takes or ()) - set(LAYOUTS)
    check(not known, f"declared layouts that there are not: {sorted(known)}")


@case("zero_copy", "batch_get_v1, batch_get_v2: one page on every path")
def every_path_reads_what_any_path_wrote(h: Harness) -> None:
    """Written by buffers, by v1 or by v2, in each layout: the three paths read the same bytes, and exists sees it."""
    s = session_on(h)
    for n, form in enumerate(each_form(h)):
        pool = s.pool(9, form=form)
        hashes = s.hashes(9, start=100 * n)
        slots = np.arange(9)
        for slot, page_hash in enumerate(hashes):
            pool.fill(slot, page_hash)
        for k, path in enumerate(PATHS):
            at = slice(3 * k, 3 * k + 3)
            check_equal(write(s, path, hashes[at], pool, slots[at]), [_STORED] * 3, f"set by {path}, {form}")
        check_equal(s.session.exists(hashes), 9, f"exists of pages that were written in three ways, {form}")
        for path in PATHS:
            pool.poison()
            order = np.array(h.rng.sample(range(9), 9), np.int64)
            check_equal(read(s, path, hashes, pool, order), [_HIT] * 9, f"get by {path}, {form}")
            for page_hash, slot in zip(hashes, order.tolist(), strict=True):
                pool.expect(slot, page_hash, f"get by {path}")
        again = [o for k, path in enumerate(PATHS) for o in write(s, path, hashes[k : k + 3], pool, order[k : k + 3])]
        check(all(again), f"set of known pages by each path answered {[o.name for o in again]}")
        s.expect_no_second_read(str(form))
        s.take_back(pool)


@case("zero_copy", "host indices")
def host_indices_come_in_any_order(h: Harness) -> None:
    """Ascending, descending, shuffled, first and last slot; a source slot may stand twice in a set."""
    s = session_on(h)
    pool = s.pool(24)
    orders: list[Callable[[], list[int]]] = [
        lambda: list(range(10)),
        lambda: list(range(23, 13, -1)),
        lambda: h.rng.sample(range(24), 10),
        lambda: [23, 0, 12, 1, 22, 11, 2, 21, 10, 3],
        lambda: h.rng.sample(range(24), 10),
    ]
    for n, order in enumerate(orders):
        hashes = s.hashes(10, start=100 * n)
        source, target = order(), order()
        for page_hash, slot in zip(hashes, source, strict=True):
            pool.fill(slot, page_hash)
        check_equal(s.session.set_v1(hashes, np.array(source)), [_STORED] * 10, f"set_v1 from slots {source}")
        pool.poison()
        check_equal(s.session.get_v1(hashes, np.array(target)), [_HIT] * 10, f"get_v1 into slots {target}")
        for page_hash, slot in zip(hashes, target, strict=True):
            pool.expect(slot, page_hash, f"get_v1 into slots {target}")
        pool.expect_untouched(target, f"get_v1 into slots {target}")
    s.expect_no_second_read("slots in any order")
    twice = s.hashes(3, start=900)
    pool.fill(5, twice[0])
    check_equal(s.session.set_v1(twice, np.array([5, 5, 5])), [_STORED] * 3, "set_v1 of three keys from one slot")
    check_equal(s.session.get_v1(twice, np.array([7, 8, 9])), [_HIT] * 3, "get_v1 of three keys of equal bytes")
    check(pool.data(7) == pool.data(8) == pool.data(9) == pool.data(5), "three keys of one slot hold unequal bytes")


@case("zero_copy", "lengths: clean_miss")
def a_missed_slot_is_not_published_and_its_neighbours_are_whole(h: Harness) -> None:
    """Hits and misses mixed, by v1 and v2, in each layout: a MISS leaves its slot (clean_miss) and all others alone.

    Without clean_miss the slot is undefined; the core says MISS for it, so no one reads it.
    """
    s = session_on(h)
    for n, form in enumerate(each_form(h)):
        pool = s.pool(12, form=form)
        hashes = s.hashes(10, start=100 * n)
        there = [h.rng.random() < 0.5 for _ in hashes]
        there[n % 10], there[(n + 1) % 10] = True, False
        stored = [page_hash for page_hash, yes in zip(hashes, there, strict=True) if yes]
        for slot, page_hash in enumerate(stored):
            pool.fill(slot, page_hash)
        check_equal(s.session.set_v1(stored, np.arange(len(stored))), [_STORED] * len(stored), "set_v1")
        for path in ("v1", "v2"):
            pool.poison()
            slots = np.array(h.rng.sample(range(12), 10), np.int64)
            outcomes = read(s, path, hashes, pool, slots)
            expected = [_HIT if yes else _MISS for yes in there]
            check_equal(outcomes, expected, f"get by {path} of present and missing pages, {form}")
            for page_hash, slot, yes in zip(hashes, slots.tolist(), there, strict=True):
                if yes:
                    pool.expect(slot, page_hash, f"get by {path} between missing pages")
                elif h.capabilities.clean_miss:
                    check(
                        pool.is_poison(slot), f"clean_miss is declared, but a MISS by {path} changed its slot, {form}"
                    )
            pool.expect_untouched(slots.tolist(), f"get by {path} with missing pages")
        s.expect_no_second_read(str(form))
        s.take_back(pool)


@case("zero_copy", "lengths, keys")
def v1_keeps_the_rules_of_get_and_set(h: Harness) -> None:
    """Past the core: a page of another size is CORRUPT, a missing key a MISS, a known one EXISTS, an illegal one
    refused, duplicates each answered; the pages between them are right.
    """
    direct = Direct(h, 8)
    small = WatchedPool(h, 8, direct.pool.form, layers=2)
    keys, odd = h.keys(3), h.key(50)
    direct.store.lend_pool(small.view)
    small.fill(0, odd)
    stored = direct.store.set_v1([odd], small.view, np.arange(1), direct.some_seals(1))
    check_equal(stored, [_STORED], "set_v1 of a page of two layers")
    direct.store.take_back_pool(small.view)
    direct.store.lend_pool(direct.pool.view)
    check_equal(direct.put(keys), [_STORED] * 3, "set_v1 of new pages")
    again = direct.put(keys)
    check(all(again), f"set_v1 of known pages answered {[o.name for o in again]}")
    if h.capabilities.reports_exists:
        check_equal(again, [Outcome.EXISTS] * 3, "set_v1 of known pages")
    direct.pool.poison()
    batch = [keys[0], odd, h.key(60), keys[1], f"{h.namespace()}/../x", keys[0], keys[2]]
    slots = np.array([6, 1, 2, 0, 3, 5, 4])
    outcomes = direct.store.get_v1(batch, direct.pool.view, slots, direct.some_seals(7))
    for at, slot in ((0, 6), (3, 0), (5, 5), (6, 4)):
        check_equal(outcomes[at], _HIT, f"good page {at} of a batch with bad ones, by v1")
        direct.pool.expect(slot, batch[at], "a good page of a batch with bad ones, by v1")
    check_equal(outcomes[1], Outcome.CORRUPT, "get_v1 of a page of two layers into one of three")
    check_equal(outcomes[2], _MISS, "get_v1 of a missing key")
    check(outcomes[4] in (_MISS, Outcome.REJECTED), f"get_v1 of an illegal key answered {outcomes[4].name}")
    direct.pool.expect_untouched(slots.tolist(), "get_v1 of a batch with bad pages")
    direct.pool.fill(0, keys[0])
    refused = direct.store.set_v1([f"{h.namespace()}//x"], direct.pool.view, np.arange(1), direct.some_seals(1))
    check_equal(refused, [Outcome.REJECTED], "set_v1 of an illegal key")
    check_equal(
        direct.store.set_v1([], direct.pool.view, np.arange(0), direct.some_seals(0)), [], "set_v1 of nothing"
    )
    check_equal(
        direct.store.get_v1([], direct.pool.view, np.arange(0), direct.some_seals(0)), [], "get_v1 of nothing"
    )


@case("zero_copy", "threads and lent memory")
def threads_share_a_registered_pool(h: Harness) -> None:
    """Four threads, each with its own slots of one pool, by v1 and v2: every page lands where it belongs."""
    s = session_on(h)
    pool = s.pool(24)

    def body(n: int) -> Callable[[], None]:
        def work() -> None:
            slots = np.arange(6 * n, 6 * n + 6)
            for turn in range(6):
                hashes = s.hashes(6, start=1000 * n + 10 * turn)
                for page_hash, slot in zip(hashes, slots.tolist(), strict=True):
                    pool.fill(slot, page_hash)
                check_equal(s.session.set_v1(hashes, slots), [_STORED] * 6, "set_v1 from several threads")
                back = slots[::-1].copy()
                check_equal(read(s, PATHS[1 + turn % 2], hashes, pool, back), [_HIT] * 6, "get from several threads")
                for page_hash, slot in zip(hashes, back.tolist(), strict=True):
                    pool.expect(slot, page_hash, "after a get beside other threads")

        return work

    h.together(*(body(n) for n in range(4)))
    s.expect_no_second_read("several threads")


@case("zero_copy", "threads and lent memory")
def v1_touches_no_memory_after_it_returned(h: Harness) -> None:
    """Once set_v1 has returned the slot may be reused at once; once get_v1 has returned nothing more is written."""
    s = session_on(h)
    pool = s.pool(8)
    hashes = s.hashes(8)
    for slot, page_hash in enumerate(hashes):
        pool.fill(slot, page_hash)
    check_equal(s.session.set_v1(hashes, np.arange(8)), [_STORED] * 8, "set_v1")
    pool.poison()
    check_equal(s.session.get_v1(hashes, np.arange(8)), [_HIT] * 8, "get_v1 after the source was overwritten")
    for slot, page_hash in enumerate(hashes):
        pool.expect(slot, page_hash, "get_v1 after the source was overwritten")
    s.expect_no_second_read("source overwritten")
    pool.poison()
    s.session.close()
    pool.expect_untouched([], "what get_v1 wrote after it had returned")


@case("zero_copy", "allocate_host_memory")
def memory_of_the_stores_allocator_serves_as_a_pool(h: Harness) -> None:
    """Where the store has an allocator: its memory is writable, aligned, at least as long as asked, and works."""
    s = session_on(h)
    form = usual_form(h)
    trial = WatchedPool(h, 6, form)
    alignment = max(64, h.capabilities.alignment)
    memory = s.session.allocate_host_memory(trial.nbytes, alignment)
    if memory is None:
        raise NotApplicable("the store has no allocator of its own (allocate_host_memory)")
    address = np.frombuffer(memory, np.uint8).ctypes.data
    check_equal(address % alignment, 0, f"address of the store's memory modulo the alignment {alignment}")
    pool = s.pool(6, form=form, memory=memory[: trial.nbytes])
    hashes = s.hashes(4)
    for slot, page_hash in enumerate(hashes):
        pool.fill(slot, page_hash)
    check_equal(s.session.set_v1(hashes, np.arange(4)), [_STORED] * 4, "set_v1 from the store's own memory")
    pool.poison()
    check_equal(s.session.get_v1(hashes, np.array([5, 0, 3, 1])), [_HIT] * 4, "get_v1 into the store's own memory")
    for slot, page_hash in zip((5, 0, 3, 1), hashes, strict=True):
        check_bytes(pool.data(slot), page_bytes(page_hash, pool.page_nbytes), f"page {slot} in the store's memory")
