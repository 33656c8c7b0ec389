from hicache_core.clock import ManualClock
from hicache_core.controller.dirty import BREAKER_PAUSE, PAUSES, DirtyQueue
from hicache_core.controller.sync import SingleRank
from hicache_core.tree.node import Node

SYNC = SingleRank()


def node(number: int) -> Node:
    return Node(number, b"", 1, None, 0)


def test_pauses_grow_and_end() -> None:
    clock = ManualClock()
    queue = DirtyQueue(100, clock)
    end = node(1)
    for attempts, pause in enumerate(PAUSES, start=1):
        assert queue.add(end, 2, attempts) == []
        assert queue.next_due == clock.now + pause
        clock.advance(pause / 2)
        assert bool(queue.take_due(SYNC)) == (pause == 0)
        clock.advance(pause / 2)
        queue.take_due(SYNC)
        assert len(queue) == queue.pages == 0
    (given_up,) = queue.add(end, 2, len(PAUSES) + 1)
    assert (given_up.end, given_up.pages) == (end, 2)
    assert queue.next_due is None


def test_a_breaker_is_no_attempt() -> None:
    clock = ManualClock()
    queue = DirtyQueue(100, clock)
    end = node(1)
    for _ in range(50):
        assert queue.add(end, 1, 1, blocked=True) == []
        clock.advance(BREAKER_PAUSE)
        (entry,) = queue.take_due(SYNC)
        assert entry.attempts == 1


def test_the_oldest_leave_when_it_is_full() -> None:
    queue = DirtyQueue(4, ManualClock())
    first, second, third = node(1), node(2), node(3)
    assert queue.add(first, 2, 1) == []
    assert queue.add(second, 2, 1) == []
    assert [entry.end for entry in queue.add(third, 3, 1)] == [first, second]
    assert third in queue
    assert queue.pages == 3


def test_an_entry_is_one_however_often_it_comes() -> None:
    queue = DirtyQueue(10, ManualClock())
    end = node(1)
    queue.add(end, 2, 1)
    queue.add(end, 5, 3)
    queue.add(end, 1, 0)
    assert (len(queue), queue.pages) == (1, 5)
    (entry,) = queue.clear()
    assert entry.attempts == 3
    assert queue.pages == 0
    assert queue.remove(end) is None
