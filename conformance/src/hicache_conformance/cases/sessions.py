"""The backend under the core: what a session over it promises its caller."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from hicache_conformance.casebook import case
from hicache_conformance.harness import Harness
from hicache_conformance.sessioning import identity_of, session_on
from hicache_conformance.verdict import CaseFailed, check, check_equal
from hicache_core.errors import MisuseError, NotSupportedError
from hicache_core.types import Outcome


@case("core", "layers of a session, hooks")
def a_session_reads_back_what_it_wrote(h: Harness) -> None:
    """Three hundred pages, more than two calls take, are stored, found and read through the core, sealed."""
    s = session_on(h)
    hashes = s.hashes(300)
    check_equal(s.session.exists(hashes), 0, "session.exists before anything was set")
    outcomes, _ = s.read(hashes[:5])
    check_equal(outcomes, [Outcome.MISS] * 5, "session.get before anything was set")
    check_equal(s.put(hashes), [Outcome.STORED] * 300, "session.set of 300 new pages")
    check_equal(s.session.exists(hashes), 300, "session.exists of 300 stored pages")
    s.expect_hits(hashes)
    again = s.put(hashes[:9], version=1)
    check(all(again), f"session.set of known pages answered {[o.name for o in again]}")
    s.expect_hits(hashes[:9])


@case("core", "batch_contains")
def a_session_tells_gaps(h: Harness) -> None:
    """exists stops at the first gap and contains looks over it, with the backend's own contains or the core's."""
    s = session_on(h)
    hashes = s.hashes(40)
    there = [n not in (3, 4, 20, 39) for n in range(40)]
    s.put([page_hash for page_hash, stored in zip(hashes, there, strict=True) if stored])
    check_equal(s.session.exists(hashes), 3, "session.exists with a gap at 3")
    check_equal(s.session.contains(hashes), there, "session.contains with four gaps")
    check_equal(s.session.query(hashes).reason, "miss", "why the run ended")


@case("core", "identity", rounds=1)
def sessions_of_different_identities_share_nothing(h: Harness) -> None:
    """Another model, weights, dtype, page size, geometry, layout or tenant: the same page hash is a miss."""
    s = session_on(h)
    hashes = s.hashes(4)
    s.put(hashes)
    changes: tuple[dict[str, Any], ...] = (
        {"model": "another"},
        {"weights": "declared:another"},
        {"dtype": "float16"},
        {"page_size": 32},
        {"head_dim": 32},
        {"layout": "layer_first"},
        {"tenant": "another"},
    )
    for change in changes:
        other = session_on(h, identity=identity_of(h, **change))
        check_equal(other.session.exists(hashes), 0, f"exists in a session that differs by {change}")
        check_equal(other.read(hashes)[0], [Outcome.MISS] * 4, f"get in a session that differs by {change}")
        check_equal(other.put(hashes, version=7), [Outcome.STORED] * 4, f"set in a session that differs by {change}")
        _cleared(other.session.clear)
        other.session.close()
    s.expect_hits(hashes)


def _cleared(clear: Callable[[], int]) -> int | None:
    try:
        return clear()
    except NotSupportedError:
        return None


@case("core", "delete, clear, scan")
def what_is_not_supported_is_said(h: Harness) -> None:
    """delete, clear and scan of a session work as declared, or raise NotSupportedError, which names the operation."""
    s = session_on(h)
    hashes = s.hashes(6)
    s.put(hashes)
    can = h.capabilities
    deleted = _ask("delete", lambda: s.session.delete(hashes[:2]), can.delete != "none")
    if can.delete == "immediate":
        check_equal(deleted, [Outcome.HIT] * 2, "session.delete of two stored pages")
        check_equal(s.session.exists(hashes), 0, "session.exists after the first page was deleted")
    listed = _ask("scan", s.session.scan, can.scan)
    if can.scan and listed is not None:
        known = set(s.physical(hashes))
        check({key for key, *_ in listed[0]} <= known, "session.scan lists keys that this session did not set")
    cleared = _ask("clear", s.session.clear, None)
    if cleared is not None:
        check_equal(s.session.contains(hashes), [False] * 6, "session.contains after clear")
    s.session.stats()


def _ask(name: str, operation: Callable[[], Any], declared: bool | None) -> Any:
    try:
        answer = operation()
    except NotSupportedError as error:
        check(not declared, f"{name} is declared, but the session says: {error}")
        check(name in str(error), f"NotSupportedError does not name {name}: {error}")
        return None
    check(declared is not False, f"{name} is not declared, but works")
    return answer


@case("core", "batch_get_v1, batch_set_v1")
def pages_of_a_host_pool_are_the_same_pages(h: Harness) -> None:
    """The path through a registered pool, slots in any order, and the path through buffers hold equal bytes."""
    s = session_on(h)
    pool = s.pool(24)
    hashes = s.hashes(20)
    slots = np.array(h.rng.sample(range(24), 20), np.int64)
    shape = (pool.page_nbytes,)
    for page_hash, slot in zip(hashes[:10], slots[:10], strict=True):
        pool.fill(slot, page_hash)
    check_equal(s.session.set_v1(hashes[:10], slots[:10]), [Outcome.STORED] * 10, "set_v1 of ten new pages")
    s.expect_hits(hashes[:10], shape=shape)
    s.put(hashes[10:], shape=shape)
    order = h.rng.sample(range(20), 20)
    pool.poison()
    answers = s.session.get_v1([hashes[n] for n in order], slots[order])
    check_equal(answers, [Outcome.HIT] * 20, "get_v1 of twenty pages in another order")
    for page_hash, slot in zip(hashes, slots, strict=True):
        pool.expect(slot, page_hash, "after get_v1")
    pool.expect_untouched(slots, "after get_v1")
    s.session.unregister_host_pool(pool.view)


@case("core", "hooks, close")
def a_closed_session_refuses_and_leaves_nothing(h: Harness) -> None:
    """After close a call is a MisuseError, close may come again, and no thread is left."""
    before = set(threading.enumerate())
    s = session_on(h)
    hashes = s.hashes(3)
    s.put(hashes)
    report = s.session.close()
    check(report.clean, f"close left something behind: {report}")
    check(s.session.close().clean, "a second close reports something left behind")
    try:
        s.session.exists(hashes)
    except MisuseError:
        pass
    else:
        raise CaseFailed("exists on a closed session does not raise MisuseError")
    for thread in set(threading.enumerate()) - before:
        thread.join(h.patience)
        check(not thread.is_alive(), f"thread {thread.name!r} is still running after the session was closed")


@case("core", "hooks")
def sessions_serve_many_callers(h: Harness) -> None:
    """Four threads share one session; each gets its own pages."""
    s = session_on(h)

    def body(n: int) -> Callable[[], None]:
        def work() -> None:
            hashes = s.hashes(40, start=1000 * n)
            check(all(s.put(hashes)), "set from several threads failed")
            check_equal(s.session.exists(hashes), 40, "exists from several threads")
            s.expect_hits(hashes)

        return work

    h.together(*(body(n) for n in range(4)))
