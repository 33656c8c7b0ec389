from hicache_core.clock import ManualClock
from hicache_core.controller.negative import NegativeCache


def test_a_miss_is_believed_until_it_expires() -> None:
    clock = ManualClock()
    cache = NegativeCache(1.0, clock)
    cache.missing("b")
    assert cache.run(["a", "b", "c"]) == 1
    clock.advance(1.0)
    assert cache.run(["a", "b", "c"]) == 3
    assert len(cache) == 0


def test_what_this_process_wrote_is_never_believed_missing() -> None:
    cache = NegativeCache(1.0, ManualClock())
    cache.missing("a")
    cache.written(["a"])
    assert cache.run(["a"]) == 1
    cache.missing("a")
    assert cache.run(["a"]) == 1


def test_the_oldest_leaves_first() -> None:
    cache = NegativeCache(1.0, ManualClock(), capacity=2)
    for name in "abc":
        cache.missing(name)
    assert len(cache) == 2
    assert cache.run(["a"]) == 1
    assert cache.run(["c"]) == 0


def test_no_ttl_no_belief() -> None:
    cache = NegativeCache(0.0, ManualClock())
    cache.missing("a")
    assert cache.run(["a"]) == 1


def test_clear_forgets() -> None:
    cache = NegativeCache(1.0, ManualClock())
    cache.missing("a")
    cache.written(["b"])
    cache.clear()
    cache.missing("b")
    assert cache.run(["a", "b"]) == 1
