from __future__ import annotations

import threading

import pytest

from hicache_core.errors import MisuseError, TransferError, TransferTimeoutError
from hicache_core.transfer.counter import LayerDoneCounter


def finish(counter: LayerDoneCounter, producer: int) -> None:
    for layer in range(counter.layer_num):
        counter.complete(producer, layer)


def test_a_layer_is_waited_for_alone():
    counter = LayerDoneCounter(3)
    producer = counter.new_producer()
    counter.complete(producer, 0, event="e0")
    assert counter.wait(producer, 0) == "e0"
    with pytest.raises(TransferTimeoutError, match="layer 1 of load 0"):
        counter.wait(producer, 1, timeout=0.0)
    assert not counter.finished(producer)


def test_waiting_ends_when_the_layer_comes():
    counter = LayerDoneCounter(2)
    producer = counter.new_producer()
    waiting, passed = threading.Event(), threading.Event()

    def wait() -> None:
        waiting.set()
        counter.wait(producer, 1, timeout=30)
        passed.set()

    thread = threading.Thread(target=wait)
    thread.start()
    assert waiting.wait(30)
    counter.complete(producer, 0)
    assert not passed.is_set()
    counter.complete(producer, 1)
    assert passed.wait(30)
    thread.join()


def test_three_sets_rotate_and_are_not_reused_while_unfinished():
    counter = LayerDoneCounter(2, sets=3)
    producers = [counter.new_producer() for _ in range(3)]
    assert producers == [0, 1, 2]
    assert not counter.has_free_set()
    finish(counter, 1)
    with pytest.raises(MisuseError, match="load 0 is unfinished and all 3 sets are in use"):
        counter.new_producer()
    finish(counter, 0)
    assert counter.has_free_set()
    assert counter.new_producer() == 3
    assert counter.wait(1, 1) is None
    with pytest.raises(TransferTimeoutError):
        counter.wait(3, 0, timeout=0)


def test_a_late_wait_for_a_load_that_ended_returns():
    counter = LayerDoneCounter(1, sets=1)
    for producer in range(3):
        assert counter.new_producer() == producer
        finish(counter, producer)
    assert counter.wait(0, 0) is None
    assert counter.finished(0)


def test_failure_reaches_those_who_wait_now_and_later():
    counter = LayerDoneCounter(3, sets=1)
    producer = counter.new_producer()
    counter.complete(producer, 0)
    caught: list[TransferError] = []
    waiting = threading.Event()

    def wait() -> None:
        waiting.set()
        try:
            counter.wait(producer, 2, timeout=30)
        except TransferError as error:
            caught.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    assert waiting.wait(30)
    cause = OSError("bad memory")
    counter.fail(producer, cause)
    thread.join(30)
    assert caught[0].__cause__ is cause
    assert "load 0 failed before layer 2 arrived: bad memory" in str(caught[0])
    assert counter.wait(producer, 0) is None
    with pytest.raises(TransferError, match="bad memory"):
        counter.wait(producer, 1)
    assert counter.new_producer() == 1, "a failed load frees its set"
    with pytest.raises(TransferError, match="load 0 failed: bad memory") as late:
        counter.wait(0, 2)
    assert late.value.__cause__ is cause


def test_a_failure_after_the_end_changes_nothing():
    counter = LayerDoneCounter(1)
    producer = counter.new_producer()
    finish(counter, producer)
    counter.fail(producer, OSError("late"))
    assert counter.wait(producer, 0) is None


def test_failures_are_kept_within_bounds():
    counter = LayerDoneCounter(1, sets=1)
    for _ in range(300):
        counter.fail(counter.new_producer(), OSError("x"))
    counter.new_producer()
    assert len(counter._failures) <= 256
    with pytest.raises(MisuseError, match="not known"):
        counter.wait(0, 0)
    with pytest.raises(TransferError, match="failed"):
        counter.wait(299, 0)


def test_misuse_is_told():
    counter = LayerDoneCounter(2)
    with pytest.raises(MisuseError, match="load 0 is not known"):
        counter.wait(0, 0)
    producer = counter.new_producer()
    with pytest.raises(MisuseError, match="layer 2 does not exist"):
        counter.wait(producer, 2)
    counter.complete(producer, 0)
    with pytest.raises(MisuseError, match="twice"):
        counter.complete(producer, 0)
    with pytest.raises(MisuseError, match="holds no set"):
        counter.complete(7, 0)
    with pytest.raises(MisuseError, match="not known"):
        counter.wait(-1, 0)
    with pytest.raises(MisuseError):
        LayerDoneCounter(0)
