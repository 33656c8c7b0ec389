"""A store that holds calls: every answer comes by the deadline, and no memory is touched behind the caller's back."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from hicache_core.clock import ManualClock
from hicache_core.errors import MisuseError
from hicache_core.plugin.spec import hookimpl
from hicache_core.storage import SessionSettings
from hicache_core.storage.calls import ExistsAnswer
from hicache_core.types import Capabilities, IoContext, Outcome

SOON = 0.02
"""A deadline that a held call must pass."""


def test_a_held_get_times_out_and_its_memory_is_quarantined(kit: Any) -> None:
    backend = kit.Stalling("batch_get")
    session = kit.open(backend)
    session.set(kit.hashes(2), kit.sources(2))
    handle = session.submit_get(kit.hashes(2), kit.rooms(2), timeout=SOON)
    assert backend.entered.acquire(timeout=kit.bound)
    assert handle.result() == [Outcome.TIMEOUT] * 2
    assert not handle.returned.is_set()
    assert session.ledger.count("abandoned") == 1
    freed = threading.Event()
    handle.add_returned_callback(lambda h: freed.set())
    backend.release.set()
    assert freed.wait(kit.bound)
    assert handle.returned.is_set()
    assert handle.result() == [Outcome.TIMEOUT] * 2
    assert session.ledger.count("returned_late") == 1
    assert session.get(kit.hashes(2), kit.rooms(2)) == [Outcome.HIT] * 2


def test_nobody_needs_to_wait_for_a_handle(kit: Any) -> None:
    backend = kit.Stalling("batch_exists")
    session = kit.open(backend)
    told = threading.Event()
    handle = session.submit_exists(kit.hashes(2), timeout=SOON)
    handle.add_done_callback(lambda h: told.set())
    assert told.wait(kit.bound)
    assert (handle.result(), handle.reason) == (0, "timeout")


def test_a_held_set_times_out(kit: Any) -> None:
    session = kit.open(kit.Stalling("batch_set"))
    assert session.set(kit.hashes(2), kit.sources(2), timeout=SOON) == [Outcome.TIMEOUT] * 2


def test_held_exists_is_a_timeout_and_queued_is_cancelled(kit: Any) -> None:
    backend = kit.Stalling("batch_exists")
    session = kit.open(backend, settings=SessionSettings(read_workers=1))
    first = session.submit_exists(kit.hashes(2))
    assert backend.entered.acquire(timeout=kit.bound)
    assert session.query(kit.hashes(2), timeout=SOON) == ExistsAnswer(0, "cancelled")
    assert first.result(SOON) == 0
    assert first.reason == "timeout"


def test_an_abandoned_call_does_nothing_after_its_hook_returned(kit: Any, spoil: Any) -> None:
    """Neither a second read nor poison, though what it read is damaged."""
    backend = kit.Stalling()
    session = kit.open(backend)
    session.set(kit.hashes(1), kit.sources(1))
    spoil(backend.pages, next(iter(backend.pages)))
    backend.held.add("batch_get")
    backend.calls.clear()
    handle = session.submit_get(kit.hashes(1), kit.rooms(1))
    assert backend.entered.acquire(timeout=kit.bound)
    handle.abandon()
    backend.release.set()
    assert handle.returned.wait(kit.bound)
    assert backend.hooks() == ["batch_get"]
    assert session.ledger.count("retries") == 0
    assert session.status().damage.poisoned == 0


def test_an_abandoned_call_is_not_decoded(kit: Any) -> None:
    from hicache_core.namespace import TransformIdentity

    class Watched:
        identity = TransformIdentity("watched", "1")
        in_place_decode, changes_length = True, False
        decoded = 0

        def max_size(self, nbytes: int) -> int:
            return nbytes

        def encode(self, ctx: Any, keys: Any, pages: Any) -> Any:
            return [[memoryview(b"".join(page))] for page in pages]

        def decode(self, ctx: Any, keys: Any, src: Any, lengths: Any, dst: Any, outcomes: Any) -> Any:
            self.decoded += 1
            return outcomes

    watched = Watched()
    backend = kit.Stalling()
    session = kit.open(backend, transforms=[watched])
    session.set(kit.hashes(1), kit.sources(1))
    assert session.get(kit.hashes(1), kit.rooms(1)) == [Outcome.HIT]
    assert watched.decoded == 1
    backend.held.add("batch_get")
    handle = session.submit_get(kit.hashes(1), kit.rooms(1))
    assert backend.entered.acquire(timeout=kit.bound)
    handle.abandon()
    backend.release.set()
    assert handle.returned.wait(kit.bound)
    assert watched.decoded == 1


def test_an_abandoned_batch_keeps_what_was_finished(kit: Any) -> None:
    """The second of two calls hangs: the pages of the first are good, and are not touched again."""

    class SecondHangs(kit.Stalling):  # type: ignore[name-defined, misc]
        @hookimpl
        def batch_get(self, keys: Any, pages: Any, ctx: IoContext) -> list[Outcome]:
            if len(keys) < 128:
                self.hold("batch_get")
            return kit.Plain.batch_get(self, keys, pages, ctx)  # type: ignore[no-any-return]

    backend = SecondHangs("batch_get")
    session = kit.open(backend)
    session.set(kit.hashes(130), kit.sources(130))
    rooms = kit.rooms(130)
    handle = session.submit_get(kit.hashes(130), rooms)
    assert backend.entered.acquire(timeout=kit.bound)
    handle.abandon()
    assert handle.result() == [Outcome.HIT] * 128 + [Outcome.TIMEOUT] * 2
    assert [kit.bytes_of(room) for room in rooms[:128]] == kit.data(128)


def test_one_held_read_does_not_hold_the_next(kit: Any) -> None:
    backend = kit.Stalling("batch_get")
    session = kit.open(backend)
    session.set(kit.hashes(1), kit.sources(1))
    handle = session.submit_get(kit.hashes(1), kit.rooms(1))
    assert backend.entered.acquire(timeout=kit.bound)
    assert session.exists(kit.hashes(1)) == 1
    assert session.set(kit.hashes(2), kit.sources(2)) == [Outcome.STORED] * 2
    backend.release.set()
    assert handle.result() == [Outcome.HIT]


def test_more_than_two_abandoned_calls_open_the_breaker(kit: Any) -> None:
    clock = ManualClock()
    backend = kit.Stalling("batch_get")
    session = kit.open(backend, clock=clock)
    handles = [session.submit_get(kit.hashes(1), kit.rooms(1)) for _ in range(3)]
    for _ in range(2):
        assert backend.entered.acquire(timeout=kit.bound)
    for handle in handles[:2]:
        handle.abandon()
    assert backend.entered.acquire(timeout=kit.bound)  # the third runs on a replacement
    assert session.status().breakers["read"].state == "closed"
    handles[2].abandon()
    assert session.status().breakers["read"].state == "open"
    calls = len(backend.calls)
    assert session.query(kit.hashes(1)) == ExistsAnswer(0, "breaker_open")
    assert session.get(kit.hashes(1), kit.rooms(1)) == [Outcome.UNAVAILABLE]
    assert len(backend.calls) == calls
    assert session.set(kit.hashes(1), kit.sources(1)) == [Outcome.STORED]  # the write direction is well
    backend.release.set()
    for handle in handles:
        assert handle.returned.wait(kit.bound)
    clock.advance(1)
    assert session.get(kit.hashes(1), kit.rooms(1)) == [Outcome.HIT]
    assert session.healthy()


def test_the_probe_is_a_real_call_with_one_page(kit: Any) -> None:
    class Sick(kit.Plain):  # type: ignore[name-defined, misc]
        sick = True

        @hookimpl
        def batch_get(self, keys: Any, pages: Any, ctx: IoContext) -> list[Outcome]:
            outcomes = kit.Plain.batch_get(self, keys, pages, ctx)
            return [Outcome.UNAVAILABLE] * len(keys) if self.sick else outcomes

    clock = ManualClock()
    backend = Sick()
    session = kit.open(backend, clock=clock)
    session.set(kit.hashes(4), kit.sources(4))
    for _ in range(5):
        assert session.get(kit.hashes(4), kit.rooms(4)) == [Outcome.UNAVAILABLE] * 4
    backend.calls.clear()
    assert session.get(kit.hashes(4), kit.rooms(4)) == [Outcome.UNAVAILABLE] * 4
    assert backend.calls == []
    clock.advance(1)
    assert session.get(kit.hashes(4), kit.rooms(4)) == [Outcome.UNAVAILABLE] * 4
    assert [len(keys) for _, keys in backend.calls] == [1]
    clock.advance(2)
    backend.sick = False
    backend.calls.clear()
    assert session.get(kit.hashes(4), kit.rooms(4)) == [Outcome.HIT] * 4
    assert [len(keys) for _, keys in backend.calls] == [1, 3]


def test_exists_probes_with_one_key(kit: Any) -> None:
    class Sick(kit.Plain):  # type: ignore[name-defined, misc]
        sick = True

        @hookimpl
        def batch_exists(self, keys: Any) -> int:
            found: int = kit.Plain.batch_exists(self, keys)
            if self.sick:
                raise ConnectionError("the store is gone")
            return found

    clock = ManualClock()
    backend = Sick()
    session = kit.open(backend, clock=clock)
    session.set(kit.hashes(3), kit.sources(3))
    for _ in range(5):
        assert session.query(kit.hashes(3)) == ExistsAnswer(0, "unavailable")
    assert session.query(kit.hashes(3)) == ExistsAnswer(0, "breaker_open")
    clock.advance(1)
    backend.calls.clear()
    backend.sick = False
    assert session.query(kit.hashes(3)) == ExistsAnswer(3, "")
    assert [len(keys) for _, keys in backend.calls if _ == "batch_exists"] == [1, 3]
    assert any("ConnectionError: the store is gone" in text for text in session.ledger.recent_errors)


def test_answers_that_are_no_failures_keep_the_breaker_closed(kit: Any) -> None:
    class Answers(kit.Plain):  # type: ignore[name-defined, misc]
        answer = Outcome.MISS

        @hookimpl
        def batch_get(self, keys: Any, pages: Any, ctx: IoContext) -> list[Outcome]:
            return [self.answer] * len(keys)

    backend = Answers()
    session = kit.open(backend)
    for answer in (Outcome.MISS, Outcome.REJECTED, Outcome.CORRUPT, Outcome.CANCELLED):
        backend.answer = answer
        for _ in range(6):
            assert session.get(kit.hashes(2), kit.rooms(2)) == [answer] * 2
    assert session.status().breakers["read"].state == "closed"
    backend.answer = Outcome.TIMEOUT
    for _ in range(5):
        session.get(kit.hashes(2), kit.rooms(2))
    assert session.status().breakers["read"].state == "open"


def test_the_deadline_is_passed_on(kit: Any) -> None:
    class Seen(kit.Plain):  # type: ignore[name-defined, misc]
        @hookimpl
        def batch_get(self, keys: Any, pages: Any, ctx: IoContext) -> list[Outcome]:
            contexts.append(ctx)
            return kit.Plain.batch_get(self, keys, pages, ctx)  # type: ignore[no-any-return]

    contexts: list[IoContext] = []
    session = kit.open(Seen(), clock=ManualClock(100.0), settings=SessionSettings(timeout=7.0, tenant="t"))
    session.get(kit.hashes(1), kit.rooms(1), timeout=3.0, priority=2)
    session.get(kit.hashes(1), kit.rooms(1))
    first, second = contexts
    assert (first.deadline, first.priority, first.tenant) == (103.0, 2, "t")
    assert second.deadline == 107.0


def test_a_batch_is_split_over_workers_where_it_pays(kit: Any) -> None:
    backend = kit.Stalling("batch_get")
    session = kit.open(backend, Capabilities(parallelism=4))
    session.set(kit.hashes(4), kit.sources(4))
    handle = session.submit_get(kit.hashes(4), kit.rooms(4))
    for _ in range(2):  # both workers are inside at once
        assert backend.entered.acquire(timeout=kit.bound)
    backend.release.set()
    assert handle.result() == [Outcome.HIT] * 4
    assert [len(keys) for hook, keys in backend.calls if hook == "batch_get"] == [2, 2]


@pytest.mark.parametrize("ask", ["get", "exists", "delete", "stats"])
def test_a_timeout_that_is_no_number_is_refused_and_other_deadlines_are_kept(kit: Any, ask: str) -> None:
    """A deadline that compares with nothing would stand before all others and never come."""
    store = kit.Stalling("batch_get")
    session = kit.open(store, Capabilities(delete="immediate"))
    arguments = {"get": (kit.hashes(1), kit.rooms(1)), "stats": ()}.get(ask, (kit.hashes(1),))
    with pytest.raises(MisuseError, match="number of seconds, got nan"):
        getattr(session, ask)(*arguments, timeout=float("nan"))
    with pytest.raises(ValueError, match="timeout nan"):
        SessionSettings(timeout=float("nan"))
    answered = threading.Event()
    handle = session.submit_get(kit.hashes(1), kit.rooms(1), timeout=0.01)
    handle.add_done_callback(lambda _: answered.set())
    assert answered.wait(kit.bound)  # nobody waits for the handle itself
    assert handle.result() == [Outcome.TIMEOUT]


def test_who_closes_while_another_does_is_not_told_that_all_is_well(kit: Any) -> None:
    store = kit.Stalling("batch_get")
    session = kit.open(store)
    handle = session.submit_get(kit.hashes(1), kit.rooms(1), timeout=kit.bound)
    assert store.entered.acquire(timeout=kit.bound)
    reports: list[Any] = []
    closer = threading.Thread(target=lambda: reports.append(session.close(kit.bound)))
    closer.start()
    kit.until(lambda: session.status().closed)
    second = session.close(0.0)
    assert not second.clean
    assert second.abandoned == 1
    store.release.set()
    closer.join(kit.bound)
    assert reports[0].clean
    assert session.close(0.0) is reports[0]
    assert handle.result() == [Outcome.MISS]
