"""The claim protocol: exactly one of worker and waiter wins."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from hicache_core.clock import ManualClock, monotonic
from hicache_core.storage.breaker import Breaker
from hicache_core.storage.handles import Call, CallState, Handle, Latch
from hicache_core.storage.ledger import StorageLedger
from hicache_core.storage.workers import DeadlineKeeper, Direction, WorkerGroup
from hicache_core.types import Outcome

BOUND = 30.0


def a_call(work: Any = None, **more: Any) -> Call:
    return Call(work or (lambda call: "answer"), lambda outcome, partial: (outcome, partial), **more)


def a_group(count: int = 1) -> WorkerGroup:
    return WorkerGroup(Direction.READ, count, Breaker(), StorageLedger(), "test")


def handle_of(*calls: Call, deadline: float | None = None) -> Handle[list[Any]]:
    return Handle(calls, list, deadline, monotonic)


def test_a_latch_lets_everyone_go() -> None:
    latch = Latch()
    assert not latch.wait(0)
    waiting = [threading.Thread(target=latch.wait, args=(BOUND,)) for _ in range(4)]
    for thread in waiting:
        thread.start()
    latch.set()
    for thread in waiting:
        thread.join(BOUND)
    assert not any(thread.is_alive() for thread in waiting)
    assert latch.is_set()
    assert latch.wait(0)


def test_a_queued_call_that_is_cancelled_never_runs() -> None:
    ran = []
    call = a_call(lambda call: ran.append(1))
    handle = handle_of(call)
    assert handle.cancel()
    assert handle.result() == [(Outcome.CANCELLED, None)]
    assert handle.returned.is_set()  # its memory is free at once
    assert not call.claim(a_group())
    assert not ran


def test_a_running_call_that_is_abandoned_keeps_its_memory_until_it_returns() -> None:
    call = a_call()
    handle = handle_of(call)
    assert call.claim(a_group())
    assert not handle.cancel()
    assert call.publish(["first"])
    handle.abandon()
    assert handle.result() == [(Outcome.TIMEOUT, ["first"])]
    assert call.abandoned
    assert not handle.returned.is_set()
    assert not call.publish(["first", "second"])
    assert not call.finish("too late")
    assert handle.returned.is_set()
    assert handle.result() == [(Outcome.TIMEOUT, ["first"])]
    assert call.state is CallState.RETURNED_LATE


def test_a_returned_call_cannot_be_abandoned() -> None:
    call = a_call()
    handle = handle_of(call)
    call.claim(a_group())
    assert call.finish("answer")
    assert not call.give_up()
    assert handle.result() == ["answer"]


def test_committing_holds_the_waiter_off() -> None:
    call = a_call()
    handle = handle_of(call)
    call.claim(a_group())
    with call.committing() as won:
        assert won
        assert not call.give_up()
        assert not handle.done()
    assert call.give_up()
    with call.committing() as won:
        assert not won


def test_a_patient_call_is_waited_for_and_opens_the_breaker() -> None:
    group = a_group()
    call = a_call(patient=True)
    handle = handle_of(call)
    call.claim(group)
    assert not call.give_up()
    assert not call.give_up()
    assert group.breaker.blocked
    call.finish("answer")
    assert handle.result(0) == ["answer"]


def test_done_gives_up_at_the_deadline() -> None:
    clock = ManualClock()
    call = a_call()
    handle: Handle[list[Any]] = Handle([call], list, 5.0, clock)
    assert not handle.done()
    clock.advance(5)
    assert handle.done()
    assert handle.result() == [(Outcome.CANCELLED, None)]


def test_a_shorter_wait_than_the_deadline_gives_up_then() -> None:
    handle = handle_of(a_call(), deadline=monotonic() + 1000)
    assert handle.result(0) == [(Outcome.CANCELLED, None)]


def test_callbacks_come_once_also_when_late_and_may_raise(caplog: pytest.LogCaptureFixture) -> None:
    call = a_call()
    handle = handle_of(call)
    seen: list[str] = []
    handle.add_done_callback(lambda h: seen.append("done"))
    handle.add_done_callback(lambda h: 1 / 0)
    handle.add_returned_callback(lambda h: seen.append("returned"))
    call.claim(a_group())
    handle.abandon()
    assert seen == ["done"]
    handle.add_done_callback(lambda h: seen.append("done late"))
    call.finish("late")
    assert seen == ["done", "done late", "returned"]
    handle.add_returned_callback(lambda h: seen.append("returned late"))
    assert seen[-1] == "returned late"
    assert "ZeroDivisionError" in caplog.text


def test_a_handle_of_several_calls_waits_for_all() -> None:
    calls = [a_call(), a_call()]
    handle = handle_of(*calls)
    group = a_group()
    calls[0].claim(group)
    calls[0].finish("first")
    assert not handle.done()
    assert not handle.returned.is_set()
    handle.abandon()
    assert handle.result() == ["first", (Outcome.CANCELLED, None)]
    assert handle.returned.is_set()


def test_racing_worker_and_waiter_agree() -> None:
    group = a_group()
    for _ in range(300):
        call = a_call()
        handle = handle_of(call)
        ready = threading.Barrier(2)

        def worker(call: Call = call, ready: threading.Barrier = ready) -> None:
            ready.wait(BOUND)
            if call.claim(group):
                call.finish("answer")

        thread = threading.Thread(target=worker)
        thread.start()
        ready.wait(BOUND)
        handle.abandon()
        thread.join(BOUND)
        assert handle.returned.is_set()
        expected = {
            CallState.RETURNED: "answer",
            CallState.CANCELLED: (Outcome.CANCELLED, None),
            CallState.RETURNED_LATE: (Outcome.TIMEOUT, None),
        }
        assert handle.result() == [expected[call.state]]


def test_the_worker_lets_go_of_lent_memory() -> None:
    group = a_group()
    memory = bytearray(8)
    call = a_call(lambda call: memory[0])
    handle = handle_of(call)
    group.submit(call)
    assert handle.result(BOUND) == [0]
    assert call.work is None
    group.close()
    assert group.join(monotonic() + BOUND)


def test_workers_survive_base_exceptions(caplog: pytest.LogCaptureFixture) -> None:
    group = a_group()

    def exits(call: Call) -> None:
        raise SystemExit(3)

    first, second = handle_of(a_call(exits)), handle_of(a_call())
    for handle in (first, second):
        group.submit(handle.calls[0])
    assert first.result(BOUND) == [(Outcome.UNAVAILABLE, None)]
    assert second.result(BOUND) == ["answer"]
    assert "SystemExit" in caplog.text
    group.close()
    assert group.join(monotonic() + BOUND)


def test_an_overrun_worker_is_replaced_twice_at_most_and_ends_on_return() -> None:
    group = a_group()
    gate, entered = threading.Event(), threading.Semaphore(0)

    def held(call: Call) -> str:
        entered.release()
        assert gate.wait(BOUND)
        return "late"

    handles = [handle_of(a_call(held)) for _ in range(3)]
    for handle in handles:
        group.submit(handle.calls[0])
        assert entered.acquire(timeout=BOUND)
        handle.abandon()
    assert len(group.threads) == 3  # its own and two replacements
    assert group.breaker.status().state == "open"
    stuck = handle_of(a_call())
    group.submit(stuck.calls[0])
    stuck.abandon()
    assert stuck.result() == [(Outcome.CANCELLED, None)]
    gate.set()
    for handle in handles:
        assert handle.returned.wait(BOUND)
    again = handle_of(a_call())
    group.submit(again.calls[0])
    assert again.result(BOUND) == ["answer"]
    group.close()
    assert group.join(monotonic() + BOUND)
    assert group.breaker.status().abandoned_now == 0


def test_a_closed_group_cancels() -> None:
    group = a_group()
    group.close()
    handle = handle_of(a_call())
    group.submit(handle.calls[0])
    assert handle.result() == [(Outcome.CANCELLED, None)]


def test_the_keeper_gives_up_on_handles_that_nobody_waits_for() -> None:
    keeper = DeadlineKeeper(monotonic, "test")
    done = threading.Event()
    handle = handle_of(a_call(), deadline=monotonic())
    handle.add_done_callback(lambda h: done.set())
    keeper.watch(handle, monotonic())
    assert done.wait(BOUND)
    assert handle.result() == [(Outcome.CANCELLED, None)]
    keeper.close(monotonic() + BOUND)
