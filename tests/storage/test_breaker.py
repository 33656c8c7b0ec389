"""The breaker opens, waits, probes, and closes again."""

from __future__ import annotations

from hicache_core.clock import ManualClock
from hicache_core.storage.breaker import Admission, Breaker


def failing(breaker: Breaker, times: int) -> None:
    for _ in range(times):
        assert breaker.admit() is Admission.PASS
        breaker.failure("no answer")


def test_five_failures_in_a_row_open_it() -> None:
    breaker = Breaker(ManualClock())
    failing(breaker, 4)
    assert breaker.status().state == "closed"
    failing(breaker, 1)
    assert breaker.status().state == "open"
    assert breaker.admit() is Admission.BLOCKED
    assert breaker.blocked
    assert "5 failures in a row" in breaker.status().reason


def test_a_success_starts_the_count_again() -> None:
    breaker = Breaker(ManualClock())
    failing(breaker, 4)
    breaker.success()
    failing(breaker, 4)
    assert breaker.status().state == "closed"


def test_one_probe_after_a_second_and_its_success_closes() -> None:
    clock = ManualClock()
    breaker = Breaker(clock)
    failing(breaker, 5)
    clock.advance(0.99)
    assert breaker.blocked
    clock.advance(0.02)
    assert not breaker.blocked
    assert breaker.admit() is Admission.PROBE
    assert breaker.admit() is Admission.BLOCKED  # one probe at a time
    breaker.success()
    assert breaker.admit() is Admission.PASS
    assert breaker.status().reason == ""


def test_failed_probes_double_the_pause_up_to_ten_seconds() -> None:
    clock = ManualClock()
    breaker = Breaker(clock)
    failing(breaker, 5)
    pauses = []
    for _ in range(6):
        pause = breaker.status().retry_in
        pauses.append(pause)
        clock.advance(pause)
        assert breaker.admit() is Admission.PROBE
        breaker.failure("still no answer")
    assert pauses == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


def test_a_closed_breaker_forgets_long_pauses() -> None:
    clock = ManualClock()
    breaker = Breaker(clock)
    failing(breaker, 5)
    for seconds in (1, 2):
        clock.advance(seconds)
        breaker.admit()
        breaker.failure("x")
    clock.advance(4)
    breaker.admit()
    breaker.success()
    failing(breaker, 5)
    assert breaker.status().retry_in == 1.0


def test_more_than_two_calls_that_have_not_returned_open_it() -> None:
    breaker = Breaker(ManualClock())
    breaker.abandoned()
    breaker.abandoned()
    assert breaker.status().state == "closed"
    breaker.abandoned()
    assert breaker.status().state == "open"
    assert breaker.status().abandoned_now == 3
    for _ in range(3):
        breaker.returned_late()
    assert breaker.status().abandoned_now == 0


def test_abandoned_calls_that_came_back_do_not_add_up() -> None:
    breaker = Breaker(ManualClock())
    for _ in range(4):
        breaker.abandoned()
        breaker.returned_late()
        breaker.success()
    assert breaker.status().state == "closed"


def test_an_abandoned_probe_is_a_failed_one() -> None:
    clock = ManualClock()
    breaker = Breaker(clock)
    failing(breaker, 5)
    clock.advance(1)
    breaker.admit()
    breaker.abandoned()
    assert breaker.status().retry_in == 2.0


def test_a_straggler_does_not_close_an_open_breaker() -> None:
    breaker = Breaker(ManualClock())
    failing(breaker, 5)
    breaker.success()
    assert breaker.blocked


def test_forced_open_for_a_minute_says_why() -> None:
    clock = ManualClock()
    breaker = Breaker(clock)
    breaker.force_open(60.0, "bad memory")
    clock.advance(59.9)
    assert breaker.blocked
    assert breaker.status().reason == "bad memory"
    clock.advance(0.1)
    assert breaker.admit() is Admission.PROBE
