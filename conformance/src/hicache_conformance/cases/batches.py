"""Batches: one answer per key, in order; empty, large, with duplicates, with one bad page."""

from __future__ import annotations

from hicache_conformance.casebook import case
from hicache_conformance.harness import Harness
from hicache_conformance.material import page_bytes
from hicache_conformance.verdict import check, check_bytes, check_equal
from hicache_core.types import Outcome


@case("core", "one answer per key")
def results_follow_the_order_of_the_keys(h: Harness) -> None:
    """Outcome i and page i belong to key i, in whatever order keys are asked for."""
    store = h.open()
    keys = h.keys(48)
    stored = set(h.rng.sample(keys, 30))
    h.store(store, sorted(stored, key=lambda _: h.rng.random()))
    for _ in range(3):
        h.rng.shuffle(keys)
        pages = [h.blank() for _ in keys]
        for key, page, outcome in zip(keys, pages, store.get(keys, pages), strict=True):
            check_equal(
                outcome, Outcome.HIT if key in stored else Outcome.MISS, f"get of {key!r} in a shuffled batch"
            )
            if outcome:
                check_bytes(page.data(), page_bytes(key, page.nbytes), f"page of {key!r} in a shuffled batch")
    answers = h.put(store, keys)
    for key, outcome in zip(keys, answers, strict=True):
        if h.capabilities.reports_exists:
            expected = Outcome.EXISTS if key in stored else Outcome.STORED
            check_equal(outcome, expected, f"set of {key!r} in a shuffled batch")


@case("core", "one answer per key")
def every_page_of_a_batch_is_stored_and_read(h: Harness) -> None:
    """No page of a batch is dropped, first, middle or last, for batches from 1 to 129 pages."""
    store = h.open()
    shape = h.shape(1, 128)
    start = 0
    for size in (1, 2, 3, 7, 16, 64, 127, 128, 129):
        keys = h.keys(size, start=start)
        start += size
        h.store(store, keys, shape=shape)
        check_equal(store.exists(keys), size, f"exists after a set of {size} pages")
        h.expect_hits(store, keys, shape=shape)


@case("core", "one answer per key")
def an_empty_batch_is_legal(h: Harness) -> None:
    """No keys, no answers: exists 0, get [], set [], delete []."""
    store = h.open()
    check_equal(store.exists([]), 0, "exists of no keys")
    check_equal(store.get([], []), [], "get of no keys")
    check_equal(store.set([], []), [], "set of no keys")
    if h.capabilities.delete != "none":
        check_equal(store.delete([]), [], "delete of no keys")


@case("core", "one answer per key", rounds=1)
def a_large_batch_is_legal(h: Harness) -> None:
    """A batch of 1,500 pages, straight to the backend, is answered whole."""
    store = h.open()
    keys = h.keys(1500)
    shape = (h.stride, max(16, h.capabilities.alignment))
    h.store(store, keys, shape=shape)
    check_equal(store.exists(keys), 1500, "exists of 1,500 stored keys")
    h.expect_hits(store, keys, shape=shape)


@case("core", "one answer per key")
def duplicate_keys_are_each_answered(h: Harness) -> None:
    """A key twice in a batch is answered twice, and every one of its buffers is filled."""
    store = h.open()
    a, b, missing = h.keys(3)
    h.store(store, [a, b])
    keys = [a, b, a, missing, a, b]
    pages = [h.blank() for _ in keys]
    outcomes = store.get(keys, pages)
    hit, miss = Outcome.HIT, Outcome.MISS
    check_equal(outcomes, [hit, hit, hit, miss, hit, hit], "get of [a, b, a, missing, a, b]")
    for i, (key, page) in enumerate(zip(keys, pages, strict=True)):
        if key != missing:
            check_bytes(page.data(), page_bytes(key, page.nbytes), f"page {i} of a batch with duplicates")
    check_equal(store.exists([a, a, b, a]), 4, "exists of [a, a, b, a]")
    check_equal(store.exists([a, a, missing, a]), 2, "exists of [a, a, missing, a]")


@case("core", "one answer per key, atomic publication")
def duplicate_keys_in_a_set_store_one_page(h: Harness) -> None:
    """A new key twice in one set leaves one of the two pages, whole, and both answers are success."""
    store = h.open()
    a, b, c = h.keys(3)
    pages = [h.lend(a), h.lend(b), h.lend(a, version=1), h.lend(c)]
    outcomes = store.set([a, b, a, c], pages)
    check(all(outcomes), f"set of [a, b, a, c] answered {[o.name for o in outcomes]}")
    outcome, data = h.fetch(store, a)
    check_equal(outcome, Outcome.HIT, "get of a key that was twice in a set")
    check(data in (pages[0].data(), pages[2].data()), "a key that was twice in a set holds neither page")
    h.expect_hits(store, [b, c])


@case("core", "lengths, one answer per key")
def one_bad_page_spares_its_neighbours(h: Harness) -> None:
    """A missing key, a wrong length and an illegal key in one batch do not disturb the pages between them."""
    store = h.open()
    keys = h.keys(6)
    unit = max(1, h.capabilities.alignment)
    right, wrong = h.shape(2, 512), (h.stride, unit)
    h.store(store, [keys[0], keys[2], keys[4], keys[5]], shape=right)
    batch = [keys[0], keys[1], keys[2], f"{h.namespace()}/../x", keys[4], keys[5]]
    shapes = [right, right, wrong, right, right, right]
    pages = [h.blank(shape) for shape in shapes]
    outcomes = store.get(batch, pages)
    check_equal(outcomes[1], Outcome.MISS, "the missing key")
    check(not outcomes[2], "the page with a wrong length is a HIT")
    check(outcomes[3] in (Outcome.MISS, Outcome.REJECTED), f"the illegal key answered {outcomes[3].name}")
    for i in (0, 4, 5):
        check_equal(outcomes[i], Outcome.HIT, f"good page {i} of a batch with bad ones")
        check_bytes(pages[i].data(), page_bytes(batch[i], pages[i].nbytes), f"good page {i} of a batch with bad ones")
    mixed = h.put(store, [keys[1], f"{h.namespace()}//x", keys[3]], shape=right)
    check_equal([mixed[0], mixed[2]], [Outcome.STORED] * 2, "set of good pages around an illegal key")
    h.expect_hits(store, [keys[1], keys[3]], shape=right)
