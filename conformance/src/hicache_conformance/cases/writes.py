"""What set promises: all or nothing, old bytes stay, success means stored."""

from __future__ import annotations

from collections.abc import Callable

from hicache_conformance.casebook import case
from hicache_conformance.driver import Driver
from hicache_conformance.harness import Harness
from hicache_conformance.material import page_bytes
from hicache_conformance.verdict import CaseFailed, check, check_bytes, check_equal
from hicache_core.types import SET_OUTCOMES, Outcome


@case("core", "atomic publication")
def success_means_stored(h: Harness) -> None:
    """A set that answers STORED or EXISTS has the page: another instance or the same one reads it back."""
    store = h.open()
    keys = h.keys(40)
    shape = h.shape(1, 1024)
    for start in range(0, 40, 8):
        h.store(store, keys[start : start + 8], shape=shape)
    check_equal(store.exists(keys), 40, "exists of 40 keys whose set succeeded")
    h.expect_hits(store, keys, shape=shape)


@case("core", "atomic publication: reports_exists")
def a_new_key_is_stored_and_a_known_one_exists(h: Harness) -> None:
    """The first set answers STORED. The next answers EXISTS (a store that cannot tell may say STORED)."""
    store = h.open()
    keys = h.keys(4)
    check_equal(h.put(store, keys), [Outcome.STORED] * 4, "set of four new keys")
    again = h.put(store, keys)
    if h.capabilities.reports_exists:
        check_equal(again, [Outcome.EXISTS] * 4, "second set with reports_exists declared")
    else:
        legal = {Outcome.EXISTS, Outcome.STORED}
        check(set(again) <= legal, f"second set answered {[o.name for o in again]}; EXISTS or STORED")
    mixed = h.put(store, [h.key(10), keys[0], h.key(11)])
    check_equal([mixed[0], mixed[2]], [Outcome.STORED] * 2, "set of new keys beside a known one")


@case("core", "atomic publication")
def setting_an_existing_key_keeps_the_old_bytes(h: Harness) -> None:
    """A set of a key that is there leaves the old bytes, whatever is offered, also of another length."""
    store = h.open()
    keys = h.keys(4)
    shape, other = h.shape(2, 512), h.shape(1, 256)
    h.store(store, keys, shape=shape)
    for version in (1, 2):
        check(all(h.put(store, keys, version=version, shape=shape)), "set of existing keys failed")
        h.expect_hits(store, keys, shape=shape)
    check(all(h.put(store, keys, version=3, shape=other)), "set of existing keys, with another length, failed")
    h.expect_hits(store, keys, shape=shape)


@case("core", "atomic publication: replace")
def replace_swaps_the_bytes(h: Harness) -> None:
    """With ctx.replace (where declared) every page of the batch is the new one, also of another length.

    Without the capability the page stays whole: the old or the new one.
    """
    store = h.open()
    keys = h.keys(5)
    shape, other = h.shape(2, 512), h.shape(1, 256)
    h.store(store, keys[:4], shape=shape)
    outcomes = h.put(store, keys[:4], version=1, shape=shape, replace=True)
    if not h.capabilities.replace:
        _whole_old_or_new(h, store, keys[:4], shape, outcomes)
        return
    check_equal(outcomes, [Outcome.STORED] * 4, "set with replace")
    h.expect_hits(store, keys[:4], version=1, shape=shape)
    check_equal(
        h.put(store, keys, version=2, shape=other, replace=True), [Outcome.STORED] * 5, "replace, other length"
    )
    h.expect_hits(store, keys, version=2, shape=other)
    check(all(h.put(store, keys, version=3, shape=other)), "plain set after replace failed")
    h.expect_hits(store, keys, version=2, shape=other)


def _whole_old_or_new(
    h: Harness, store: Driver, keys: list[str], shape: tuple[int, ...], outcomes: list[Outcome]
) -> None:
    for key, answered in zip(keys, outcomes, strict=True):
        outcome, data = h.fetch(store, key, shape)
        check_equal(outcome, Outcome.HIT, f"get of {key!r} after a replace that is not declared ({answered.name})")
        whole = (page_bytes(key, len(data), 0), page_bytes(key, len(data), 1))
        check(data in whole, f"{key!r} is neither the old nor the new page after a replace that is not declared")


@case("core", "atomic publication: failed set")
def a_failed_set_leaves_no_trace(h: Harness) -> None:
    """A set that breaks half way (its source cannot be read) is not visible; the next set of the key is stored."""
    store = h.open()
    key, neighbour = h.keys(2)
    shape = h.shape(3, 1024)
    h.store(store, [neighbour], shape=shape)
    broken = h.lend(key, shape, version=1)
    broken.buffers[-1].release()
    outcome = _raw_set(store, key, broken.buffers)
    check(
        outcome not in (Outcome.STORED, Outcome.EXISTS), "set of a page whose source cannot be read answered success"
    )
    h.expect_gone(store, [key], shape=shape)
    check_equal(
        h.put(store, [key], version=2, shape=shape), [Outcome.STORED], "set of the key after a set that failed"
    )
    h.expect_hits(store, [key], version=2, shape=shape)
    h.expect_hits(store, [neighbour], shape=shape)


def _raw_set(store: Driver, key: str, buffers: list[memoryview]) -> Outcome | None:
    """A set that may raise: the core then says UNAVAILABLE, so None stands for it."""
    hook: Callable[..., object] = store.backend.batch_set  # type: ignore[attr-defined]
    try:
        answer = hook(keys=[key], pages=[buffers], ctx=store.context())
    except Exception:  # noqa: BLE001 - an exception is a legal answer to a page that cannot be read
        return None
    if not isinstance(answer, list) or len(answer) != 1 or answer[0] not in SET_OUTCOMES:
        raise CaseFailed(f"set of a page whose source cannot be read answered {answer!r}")
    outcome: Outcome = answer[0]
    return outcome


@case("core", "atomic publication: idempotency")
def repeating_a_call_changes_nothing(h: Harness) -> None:
    """Each call may come again, as after a lost answer: set, get, exists, delete, clear do no harm."""
    store = h.open()
    keys = h.keys(6)
    pages = [h.lend(key) for key in keys]
    for turn in range(3):
        check(all(store.set(keys, pages)), f"set number {turn + 1} of the same pages failed")
        check_equal(store.exists(keys), 6, f"exists after set number {turn + 1}")
        for _ in range(2):
            h.expect_hits(store, keys)
    if h.capabilities.replace:
        for _ in range(2):
            check_equal(store.set(keys, pages, replace=True), [Outcome.STORED] * 6, "replace by the same pages")
            h.expect_hits(store, keys)
    if h.capabilities.delete == "immediate":
        check_equal(store.delete(keys[:2]), [Outcome.HIT] * 2, "first delete")
        for _ in range(2):
            check_equal(store.delete(keys[:2]), [Outcome.MISS] * 2, "delete again")
            h.expect_hits(store, keys[2:])
    if store.clear(h.namespace()) is not None:
        check_equal(store.clear(h.namespace()), 0, "clear of an empty namespace")
        h.expect_gone(store, keys)
    back = h.blank()
    outcome = store.get([keys[5]], [back])[0]
    if outcome is Outcome.HIT:
        check_bytes(back.data(), page_bytes(keys[5], back.nbytes), "bytes after everything was repeated")
