"""Namespaces: apart from each other, and clear takes no more than its own."""

from __future__ import annotations

from hicache_conformance.casebook import case
from hicache_conformance.harness import Harness
from hicache_conformance.verdict import check, check_equal
from hicache_core.types import Outcome


@case("core", "keys")
def namespaces_are_apart(h: Harness) -> None:
    """The same page hash in two namespaces is two pages, with their own bytes."""
    store = h.open()
    first, second = h.keys(5, ns=0), h.keys(5, ns=1)
    h.store(store, first)
    h.expect_gone(store, second)
    check_equal(h.put(store, second), [Outcome.STORED] * 5, "set of the same page hashes in another namespace")
    h.expect_hits(store, first)
    h.expect_hits(store, second)


@case("core", "keys")
def two_instances_with_two_namespaces_share_nothing(h: Harness) -> None:
    """Two opened instances of one store, each with its own namespace, do not see or spoil each other's pages."""
    one, two = h.open(0), h.open(1)
    mine, theirs = h.keys(4, ns=0), h.keys(4, ns=1)
    h.store(one, mine)
    check_equal(two.exists(theirs), 0, "exists in the second namespace")
    h.store(two, theirs)
    h.expect_hits(one, mine)
    h.expect_hits(two, theirs)
    if two.clear(h.namespace(1)) is not None:
        h.expect_gone(two, theirs)
        h.expect_hits(one, mine)


@case("core", "clear, keys")
def clear_removes_only_its_namespace(h: Harness) -> None:
    """clear takes every key of its namespace, says how many, and leaves all others: also one whose name begins alike.

    A store without clear answers that it is not supported, and keeps everything.
    """
    store = h.open()
    name = h.namespace(0)
    mine = [*h.keys(6, ns=0), f"{name}/a", f"{name}/a/b", f"{name}/.x"]
    twins = [f"{name[:-1]}/a", f"{name}0/a", f"{name}.x/a", f"{name}-/a", f"x{name}/a", f"a/{name}/a", f"{name}_/a/b"]
    others = [*h.keys(4, ns=1), *twins]
    h.store(store, mine)
    h.store(store, others)
    cleared = store.clear(name)
    if cleared is None:
        h.expect_hits(store, [*mine, *others])
        return
    check_equal(cleared, len(mine), "number of keys that clear says it removed")
    h.expect_gone(store, mine)
    h.expect_hits(store, others)
    check_equal(h.put(store, mine, version=1), [Outcome.STORED] * len(mine), "set after clear")
    h.expect_hits(store, mine, version=1)
    for twin in twins:
        store.clear(twin.split("/")[0])


@case("core", "keys")
def clear_and_scan_refuse_a_name_outside_the_rule(h: Harness) -> None:
    """clear and scan of "", "..", "a/b", "*" … remove and list nothing: 0, an empty list, or an error."""
    store = h.open()
    keys = h.keys(3)
    h.store(store, keys)
    name = h.namespace()
    bad = ("", ".", "..", "/", f"{name}/", f"{name}/..", f"../{name}", f"./{name}", "*", f"{name}*", f"{name[:5]}*")
    for argument in (*bad, name.upper(), f"{name}\0", f" {name}", "n" * 201):
        if store.refused("clear", namespace=argument) is None:
            check_equal(store.clear(argument), 0, f"number of keys removed by clear({argument!r})")
        h.expect_hits(store, keys)
        if store.refused("scan", namespace=argument, cursor=None) is None:
            check(not store.scan(argument), f"scan({argument!r}) lists keys")
