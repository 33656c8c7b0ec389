"""What exists and contains promise: a run from the start, a hint that agrees with what was stored."""

from __future__ import annotations

from hicache_conformance.casebook import case
from hicache_conformance.harness import Harness
from hicache_conformance.verdict import check, check_equal


@case("core", "batch_exists")
def exists_counts_the_run_from_the_start(h: Harness) -> None:
    """batch_exists is the length of the run of existing keys from the start, not the number of existing keys."""
    store = h.open()
    keys = h.keys(8)
    h.store(store, [k for i, k in enumerate(keys) if i not in (3, 6)])
    check_equal(store.exists(keys), 3, "exists of 8 keys with holes at 3 and 6")
    check_equal(store.exists(keys[3:]), 0, "exists of a list whose first key is missing")
    check_equal(store.exists(keys[4:]), 2, "exists of a list with a hole at 2")
    check_equal(store.exists(keys[:3]), 3, "exists of three stored keys")
    check_equal(store.exists(list(reversed(keys[:3]))), 3, "exists of the same keys in another order")


@case("core", "batch_exists")
def exists_walks_over_every_position(h: Harness) -> None:
    """A hole at any place of a batch of 128 ends the run exactly there."""
    store = h.open()
    keys = h.keys(128)
    missing = h.key(1000)
    h.store(store, keys, shape=h.shape(1, 64))
    check_equal(store.exists(keys), 128, "exists of 128 stored keys")
    for hole in (0, 1, 2, 63, 64, 126, 127):
        holed = [*keys[:hole], missing, *keys[hole + 1 :]]
        check_equal(store.exists(holed), hole, f"exists of 128 keys with a hole at {hole}")


@case("core", "batch_exists, atomic publication")
def a_stored_key_is_seen_at_once(h: Harness) -> None:
    """What set answered with success, exists and get find in the next call; what was never set, they do not."""
    store = h.open()
    for key in h.keys(12):
        check_equal(store.exists([key]), 0, f"exists of {key!r} before it was set")
        h.store(store, [key])
        check_equal(store.exists([key]), 1, f"exists of {key!r} after set succeeded")
        h.expect_hits(store, [key])


@case("core", "batch_contains")
def contains_answers_for_each_key(h: Harness) -> None:
    """batch_contains, where implemented, tells each key by itself, over gaps; it agrees with batch_exists."""
    store = h.open()
    keys = h.keys(9)
    h.store(store, keys[1::2])
    expected = [i % 2 == 1 for i in range(9)]
    answer = store.contains(keys)
    if answer is not None:
        check_equal(answer, expected, "contains of 9 keys of which every second is stored")
        check_equal(store.contains([]), [], "contains of no keys")
        check_equal(store.contains([keys[1], keys[0], keys[1]]), [True, False, True], "contains with a duplicate key")
    check_equal([store.exists([k]) == 1 for k in keys], expected, "exists of each key by itself")


@case("core", "batch_exists")
def exists_changes_nothing(h: Harness) -> None:
    """Asking for a key neither makes nor spoils it."""
    store = h.open()
    here, absent = h.keys(2)
    h.store(store, [here])
    for _ in range(20):
        check_equal(store.exists([here, absent]), 1, "exists of [stored, missing]")
    h.expect_hits(store, [here])
    h.expect_gone(store, [absent])
    check(h.put(store, [absent])[0], "set of a key that was only asked for")
