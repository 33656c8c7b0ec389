"""Keys are opaque: every legal one is its own, and an illegal one touches nothing."""

from __future__ import annotations

from hicache_conformance.casebook import case
from hicache_conformance.driver import Driver
from hicache_conformance.harness import Harness
from hicache_conformance.material import LEGAL_ODD_TAILS, illegal_keys, long_tails
from hicache_conformance.verdict import check, check_equal
from hicache_core.types import KEY_PATTERN, Outcome


def _each_is_its_own(h: Harness, keys: list[str]) -> None:
    """Store them one by one; each is new until it is set, and all hold their own bytes in the end."""
    for key in keys:
        if KEY_PATTERN.fullmatch(key) is None:
            raise ValueError(f"the suite's own key is illegal: {key!r}")
    store = h.open()
    for key in keys:
        check_equal(store.exists([key]), 0, f"exists of {key!r} before it was set")
        h.store(store, [key])
    check_equal(store.exists(keys), len(keys), "exists of all of them")
    h.expect_hits(store, keys)


@case("core", "keys")
def a_key_and_a_longer_path_are_both_legal(h: Harness) -> None:
    """ "a" and "a/b" are two keys, in either order, at any depth; a namespace alone is a key too."""
    one, two, three = h.namespace(0), h.namespace(1), h.namespace(2)
    _each_is_its_own(h, [f"{one}/a", f"{one}/a/b", f"{one}/a/b/c", f"{one}/a/c"])
    _each_is_its_own(h, [f"{two}/a/b/c", f"{two}/a/b", f"{two}/a", f"{two}/ab"])
    _each_is_its_own(h, [f"{three}/x", three])


@case("core", "keys")
def every_legal_key_is_its_own(h: Harness) -> None:
    """Keys that look like temporaries, options, reserved names or prefixes of each other are keys like any other."""
    _each_is_its_own(h, [f"{h.namespace()}/{tail}" for tail in LEGAL_ODD_TAILS])


@case("core", "keys")
def keys_of_200_characters_are_told_apart(h: Harness) -> None:
    """The whole of a key counts, to its 200th character; also in one segment, also in a hundred."""
    ns = h.namespace()
    keys = [f"{ns}/{tail}" for tail in long_tails(ns)]
    check_equal({len(key) for key in keys}, {200}, "lengths of the suite's own long keys")
    _each_is_its_own(h, keys)


@case("core", "keys")
def a_long_common_beginning_does_not_make_keys_equal(h: Harness) -> None:
    """Keys that differ only after 64, 128 or 190 characters, or only in one symbol, are different keys."""
    ns = h.namespace()
    keys = [f"{ns}/{'a' * n}{end}" for n in (31, 63, 64, 95, 128, 160) for end in ("1", "2", ".", "-", "_")]
    _each_is_its_own(h, keys)


@case("core", "keys")
def an_upper_case_key_is_not_its_lower_case_twin(h: Harness) -> None:
    """Upper case is outside the rule: REJECTED or MISS, never the page of the lower-case key."""
    store = h.open()
    key = h.key()
    twin = key.upper()
    h.store(store, [key])
    check_equal(store.exists([twin]), 0, "exists of a stored key written in upper case")
    outcome, _ = h.fetch(store, twin)
    check(outcome in (Outcome.MISS, Outcome.REJECTED), f"get of the upper-case twin answered {outcome.name}")
    check(not h.put(store, [twin], version=1)[0], "set of a key in upper case answered success")
    h.expect_hits(store, [key])


@case("core", "keys")
def an_illegal_key_touches_nothing(h: Harness) -> None:
    """A key outside the rule: REJECTED by set, REJECTED or MISS by get and delete, 0 by exists; all else stays."""
    store = h.open()
    witnesses = [h.key(0), h.key(1), f"{h.namespace()}/a", f"{h.namespace()}/a/b"]
    h.store(store, witnesses)
    before = store.scan(None) if h.capabilities.scan else None
    for key in illegal_keys(h.namespace()):
        _refused(h, store, key)
    h.expect_hits(store, witnesses)
    if before is not None:
        after = store.scan(None) or []
        check_equal(
            {k for k, *_ in after}, {k for k, *_ in before}, "keys in the store after illegal ones were tried"
        )


def _refused(h: Harness, store: Driver, key: str) -> None:
    legal = (Outcome.MISS, Outcome.REJECTED)
    for turn in ("before", "after"):
        check_equal(store.exists([key]), 0, f"exists of the illegal key {key!r}, {turn} a set of it")
        outcome = store.get([key], [h.blank()])[0]
        check(outcome in legal, f"get of the illegal key {key!r}, {turn} a set of it, answered {outcome.name}")
        if turn == "before":
            outcome = store.set([key], [h.lend(h.key())])[0]
            check_equal(outcome, Outcome.REJECTED, f"set of the illegal key {key!r}")
    deleted = store.delete([key])
    if deleted is not None:
        check(deleted[0] in legal, f"delete of the illegal key {key!r} answered {deleted[0].name}")
