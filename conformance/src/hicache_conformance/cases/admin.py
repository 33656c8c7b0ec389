"""delete, scan and stats: optional, and honest where they are there."""

from __future__ import annotations

from typing import Any

import msgspec

from hicache_conformance.casebook import case
from hicache_conformance.harness import Harness
from hicache_conformance.material import Lent
from hicache_conformance.verdict import check, check_equal
from hicache_core.types import Outcome


@case("core", "delete")
def delete_does_what_it_declares(h: Harness) -> None:
    """immediate: HIT and gone at once, else MISS. eventual: legal answers. none: not supported, all stays."""
    store = h.open()
    keys = h.keys(6)
    h.store(store, keys)
    answer = store.delete(keys[:3])
    if h.capabilities.delete == "none":
        check(answer is None, "delete is not declared, but answers")
        h.expect_hits(store, keys)
        return
    check_equal(answer, [Outcome.HIT] * 3, "delete of three stored keys")
    h.expect_hits(store, keys[3:])
    if h.capabilities.delete == "immediate":
        h.expect_gone(store, keys[:3])
        mixed = store.delete([keys[0], keys[3], h.key(99)])
        check_equal(mixed, [Outcome.MISS, Outcome.HIT, Outcome.MISS], "delete of [gone, stored, never there]")
        twice = store.delete([keys[4], keys[4]]) or []
        check_equal(twice[:1], [Outcome.HIT], "delete of a key twice in one batch")
        check_equal(h.put(store, keys[:3], version=1), [Outcome.STORED] * 3, "set of keys that were deleted")
        h.expect_hits(store, keys[:3], version=1)


@case("core", "keys")
def delete_takes_no_more_than_its_key(h: Harness) -> None:
    """Deleting "a" leaves "a/b" and "ab"; deleting "a/b" leaves "a"."""
    store = h.open()
    ns = h.namespace()
    keys = [f"{ns}/a", f"{ns}/a/b", f"{ns}/ab", f"{ns}/a.b", f"{ns}/b/c", f"{ns}/b"]
    h.store(store, keys)
    if store.delete([keys[0], keys[4]]) is None:
        h.expect_hits(store, keys)
        return
    left = [keys[1], keys[2], keys[3], keys[5]]
    h.expect_hits(store, left)
    if h.capabilities.delete == "immediate":
        h.expect_gone(store, [keys[0], keys[4]])
        check_equal(h.put(store, [keys[0]]), [Outcome.STORED], "set of a deleted key beside longer ones")


@case("core", "scan")
def scan_lists_what_is_stored(h: Harness) -> None:
    """scan names each key of the namespace once, with the bytes stored; None means every namespace; others stay out.

    A store that does not declare scan answers that it is not supported.
    """
    store = h.open()
    if not h.capabilities.scan:
        check(store.scan(h.namespace()) is None, "scan is not declared, but answers")
        return
    sizes = {}
    for n, regions in enumerate((1, 1, 2, 3, 1)):
        shape = h.shape(regions, 256)
        h.store(store, [h.key(n)], shape=shape)
        sizes[h.key(n)] = sum(shape)
    odd = [f"{h.namespace()}/a", f"{h.namespace()}/a/b", f"{h.namespace()}/.a"]
    h.store(store, odd)
    sizes.update(dict.fromkeys(odd, sum(h.shape())))
    other = h.keys(3, ns=1)
    h.store(store, other)
    found = store.scan(h.namespace()) or []
    check_equal(sorted(k for k, *_ in found), sorted(sizes), "keys that scan lists in the namespace")
    check_equal({k: n for k, n, _ in found}, sizes, "sizes that scan tells")
    check(all(isinstance(m, int | float) and m > 0 for *_, m in found), "scan tells no time of modification")
    everywhere = [k for k, *_ in store.scan(None) or []]
    check(set(sizes) | set(other) <= set(everywhere), "scan(None) leaves out a namespace")
    check_equal(len(everywhere), len(set(everywhere)), "scan(None) lists a key twice: entries against distinct keys")
    check_equal(store.scan(h.namespace(2)), [], "scan of an empty namespace")


@case("core", "scan", rounds=1)
def scan_comes_to_an_end_over_many_keys(h: Harness) -> None:
    """With more keys than one page of scan holds, the cursor leads through all of them, each once."""
    store = h.open()
    keys = h.keys(1300)
    h.store(store, keys, shape=(h.stride, max(1, h.capabilities.alignment)))
    found = store.scan(h.namespace())
    check((found is not None) == h.capabilities.scan, "scan does not agree with the capability")
    if found is not None:
        check_equal(len(found), 1300, "entries in a scan of 1,300 keys")
        check_equal({k for k, *_ in found}, set(keys), "keys in a scan of 1,300")


@case("core", "stats")
def stats_count_bytes_moved(h: Harness) -> None:
    """stats is a struct or mapping that JSON can hold; reading 4 MiB of missing pages moves no bytes."""
    store = h.open()
    before = _byte_counters(store.stats())
    keys = h.keys(64)
    shape = h.shape(1, 64 << 10)
    destination = h.blank(shape)
    outcomes = store.get(keys, [destination] * 64)
    check_equal(set(outcomes), {Outcome.MISS}, "get of 64 missing keys")
    grown = _growth(before, _byte_counters(store.stats()))
    asked = 64 * sum(shape)
    check(
        grown <= asked // 2, f"a byte counter in stats grew by {grown} while {asked} bytes were asked for and missed"
    )


@case("core", "stats")
def stats_do_not_count_what_was_not_written(h: Harness) -> None:
    """A set that is refused writes no page, and stats says so where it counts bytes."""
    store = h.open()
    key = h.key()
    shape = h.shape(1, 64 << 10)
    page: Lent = h.lend(key, shape)
    h.store(store, [key], shape=shape)
    before = _byte_counters(store.stats())
    for _ in range(16):
        store.set([f"{h.namespace()}/../x"] * 4, [page] * 4)
    grown = _growth(before, _byte_counters(store.stats()))
    offered = 64 * sum(shape)
    check(grown <= offered // 2, f"a byte counter in stats grew by {grown} while {offered} bytes were refused")


def _byte_counters(stats: Any) -> dict[str, float]:
    """Every number in stats whose path says that it counts bytes."""
    if stats is None:
        return {}
    tree = msgspec.json.decode(msgspec.json.encode(stats))
    check(isinstance(tree, dict), f"stats is {type(stats).__name__}; a msgspec.Struct or a dict of counters")
    found: dict[str, float] = {}

    def walk(path: str, node: Any) -> None:
        if isinstance(node, dict):
            for name, child in node.items():
                walk(f"{path}.{name}", child)
        elif isinstance(node, int | float) and not isinstance(node, bool) and "byte" in path.lower():
            found[path] = node

    walk("", tree)
    return found


def _growth(before: dict[str, float], after: dict[str, float]) -> float:
    """The most that a counter grew; free space and the like may fall, and do not count."""
    moved = (n for n in after if not any(word in n.lower() for word in ("free", "used", "capacity", "disk", "max")))
    return max((after[name] - before.get(name, 0) for name in moved), default=0)
