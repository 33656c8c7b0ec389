"""A store that hangs, fails or hangs up: the caller gets its answer by the deadline, and the store is tried again."""

from __future__ import annotations

import threading
from typing import cast

from hicache_conformance.casebook import case
from hicache_conformance.harness import Harness
from hicache_conformance.proxy import Failing, Stalling
from hicache_conformance.sessioning import Opened, session_on
from hicache_conformance.verdict import check, check_equal
from hicache_core.types import Outcome

_DEADLINE = 0.6
"""Seconds given to a call that is known to stall."""


def _stalled(h: Harness, *hooks: str) -> tuple[Opened, Stalling]:
    s = session_on(h, wrap=lambda backend: Stalling(backend, ()))
    stall = cast(Stalling, s.between)
    h.at_end(stall.release.set)
    check(all(s.put(s.hashes(4))), "set before the stall")
    stall.stalled = set(hooks)
    return s, stall


@case("hostile", "deadlines and workers", rounds=1)
def a_stalled_read_ends_at_its_deadline(h: Harness) -> None:
    """get on a store that hangs: TIMEOUT for every page, the memory quarantined until the call is back."""
    s, stall = _stalled(h, "batch_get")
    hashes = s.hashes(4)
    pages = [h.blank(s.shape) for _ in hashes]
    handle = s.session.submit_get(hashes, [page.buffers for page in pages], timeout=_DEADLINE)
    check_equal(handle.result(h.patience), [Outcome.TIMEOUT] * 4, "get on a store that hangs")
    check(not handle.returned.is_set(), "the memory is free while the store still has it")
    check(s.session.status().running["read"] >= 1, "the hanging call is not counted")
    stall.stalled = set()
    stall.release.set()
    check(handle.returned.wait(h.patience), "the memory is not free after the call came back")
    for page in pages:
        page.write(b"\x11" * page.nbytes)
    s.expect_hits(hashes)
    check(all(set(page.data()) == {0x11} for page in pages), "an abandoned call wrote after it had returned")


@case("hostile", "deadlines and workers", rounds=1)
def a_stalled_exists_is_no_hit(h: Harness) -> None:
    """exists on a store that hangs: 0, by the deadline, and the reason is said."""
    s, stall = _stalled(h, "batch_exists")
    answer = s.session.query(s.hashes(4), timeout=_DEADLINE)
    check_equal((answer.count, answer.reason), (0, "timeout"), "exists on a store that hangs")
    stall.stalled = set()
    stall.release.set()
    check_equal(s.session.exists(s.hashes(4)), 4, "exists after the stall")


@case("hostile", "deadlines and workers", rounds=1)
def a_stalled_write_ends_at_its_deadline(h: Harness) -> None:
    """set on a store that hangs: TIMEOUT; reads go on meanwhile; afterwards the page is whole or absent."""
    s, stall = _stalled(h, "batch_set")
    known, fresh = s.hashes(4), s.hashes(3, start=50)
    pages = [s.page(page_hash) for page_hash in fresh]
    handle = s.session.submit_set(fresh, [page.buffers for page in pages], timeout=_DEADLINE)
    check_equal(handle.result(h.patience), [Outcome.TIMEOUT] * 3, "set on a store that hangs")
    s.expect_hits(known)
    stall.stalled = set()
    stall.release.set()
    check(handle.returned.wait(h.patience), "the memory is not free after the call came back")
    check(all(s.put(fresh)), "set after the stall")
    s.expect_hits(fresh)


@case("hostile", "deadlines and workers: breaker", rounds=1)
def a_store_that_keeps_stalling_is_left_alone_for_a_while(h: Harness) -> None:
    """After a few hanging calls the breaker opens: answers come at once, the store is not asked. Then it recovers."""
    s, stall = _stalled(h, "batch_get")
    hashes = s.hashes(4)
    for _ in range(6):
        s.session.get(hashes[:1], [h.blank(s.shape).buffers], timeout=_DEADLINE)
    check_equal(s.session.breakers["read"].status().state, "open", "the read breaker after six hanging calls")
    reached = stall.reached
    outcomes = s.session.get(hashes, [h.blank(s.shape).buffers for _ in hashes], timeout=h.patience)
    check_equal(outcomes, [Outcome.UNAVAILABLE] * 4, "get while the breaker is open")
    check_equal(s.session.query(hashes).reason, "breaker_open", "exists while the breaker is open")
    check_equal(stall.reached, reached, "calls that reached the store while the breaker is open")
    stall.stalled = set()
    stall.release.set()
    check(_recovers(s, h), "the session did not find back to a store that works again")
    s.expect_hits(hashes)


def _recovers(s: Opened, h: Harness) -> bool:
    """Ask again and again, a few times a second, until pages are found; the breaker lets a probe through in time."""
    pause = threading.Event()
    hashes = s.hashes(4)
    for _ in range(int(4 * h.patience / 0.05)):
        if s.session.exists(hashes) == 4:
            return True
        pause.wait(0.05)
    return False


@case("hostile", "hooks, a failing store costs recomputation", rounds=1)
def a_store_that_hangs_up_costs_misses(h: Harness) -> None:
    """Every hook raises: UNAVAILABLE and 0, never an exception to the caller; the cause is kept; then it recovers."""
    s = session_on(h, wrap=Failing)
    failing = cast(Failing, s.between)
    hashes = s.hashes(4)
    s.put(hashes)
    failing.failing = True
    check_equal(s.session.query(hashes).reason, "unavailable", "why exists of a failing store is 0")
    check_equal(s.read(hashes)[0], [Outcome.UNAVAILABLE] * 4, "get from a failing store")
    check_equal(s.put(s.hashes(2, start=9)), [Outcome.UNAVAILABLE] * 2, "set to a failing store")
    said = " ".join(s.session.status().recent_errors)
    check("hung up" in said, f"the cause is not kept: {said!r}")
    failing.failing = False
    check(_recovers(s, h), "the session did not find back to a store that works again")
    s.expect_hits(hashes)


@case("hostile", "close, deadlines and workers", rounds=1)
def closing_does_not_wait_for_a_stalled_call(h: Harness) -> None:
    """close with a call that hangs: it comes back, and reports the call as abandoned."""
    s, stall = _stalled(h, "batch_get")
    handle = s.session.submit_get(s.hashes(1), [h.blank(s.shape).buffers], timeout=_DEADLINE)
    handle.result(h.patience)
    reports = []
    h.together(lambda: reports.append(s.session.close(timeout=_DEADLINE)))
    check_equal(reports[0].abandoned, 1, "calls that close reports as abandoned")
    stall.release.set()
    check(handle.returned.wait(h.patience), "the abandoned call did not come back")
