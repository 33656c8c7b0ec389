from __future__ import annotations

import threading
import tracemalloc

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hicache_core.errors import IntegrityError, MisuseError
from hicache_core.pools.allocator import SlotAllocator

CAPACITY = 40


class AllocatorMachine(RuleBasedStateMachine):
    """Against a set of taken slots."""

    def __init__(self) -> None:
        super().__init__()
        self.slots = SlotAllocator(CAPACITY)
        self.taken: set[int] = set()

    @rule(count=st.integers(0, CAPACITY + 2))
    def alloc(self, count):
        free = sorted(set(range(CAPACITY)) - self.taken)
        got = self.slots.alloc(count)
        if count > len(free):
            assert got is None
        else:
            assert got.dtype == np.int64
            assert got.tolist() == free[:count]
            self.taken |= set(got.tolist())

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def free(self, data):
        some = data.draw(st.lists(st.sampled_from(sorted(self.taken)), unique=True))
        self.slots.free(np.array(some, dtype=np.int64))
        self.taken -= set(some)

    @rule(data=st.data(), foreign=st.sampled_from([-1, CAPACITY, 10**6]))
    def free_what_cannot_be_freed(self, data, foreign):
        bad = [foreign]
        if self.taken and data.draw(st.booleans()):
            bad = [min(self.taken), min(self.taken)]
        elif len(self.taken) < CAPACITY:
            bad = [*sorted(self.taken)[:2], min(set(range(CAPACITY)) - self.taken)]
        with pytest.raises(MisuseError):
            self.slots.free(np.array(bad, dtype=np.int64))

    @rule()
    def reset(self):
        self.slots.reset()
        self.taken.clear()

    @invariant()
    def adds_up(self):
        self.slots.check_integrity()
        assert self.slots.allocated == len(self.taken)
        assert self.slots.allocated + self.slots.available == self.slots.capacity == CAPACITY
        assert self.slots.is_allocated(np.array(sorted(self.taken), dtype=np.int64))


AllocatorMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestAllocatorMachine = AllocatorMachine.TestCase


def test_messages_name_the_slots():
    slots = SlotAllocator(8)
    slots.alloc(4)
    with pytest.raises(MisuseError, match=r"\[5, 6\] are already free"):
        slots.free(np.array([1, 5, 6]))
    with pytest.raises(MisuseError, match=r"\[8\] are not of this pool, which has 8"):
        slots.free(np.array([8]))
    with pytest.raises(MisuseError, match=r"\[2\] are listed more than once"):
        slots.free(np.array([2, 1, 2]))
    with pytest.raises(MisuseError, match="int64"):
        slots.free(np.array([1.0]))
    assert slots.allocated == 4


def test_crosses_the_search_window():
    slots = SlotAllocator(30_000)
    assert slots.alloc(30_000).tolist() == list(range(30_000))
    slots.free(np.arange(0, 30_000, 3000))
    assert slots.alloc(10).tolist() == list(range(0, 30_000, 3000))
    assert slots.alloc(1) is None


def test_damage_is_found():
    slots = SlotAllocator(8)
    slots.alloc(3)
    slots._free[1] = True
    with pytest.raises(IntegrityError, match="by count"):
        slots.check_integrity()


def test_what_is_given_out_shares_no_memory_and_nothing_grows():
    slots = SlotAllocator(4096)
    held = slots.alloc(64)
    assert held.base is None or held.base.nbytes == held.nbytes
    slots.free(held)
    random = np.random.default_rng(3)

    def churn() -> None:
        mine = [slots.alloc(int(n)) for n in random.integers(1, 40, 60)]
        for chunk in mine:
            slots.free(random.permutation(chunk))

    churn()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(200):
            churn()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 16 << 10
    assert slots.available == slots.capacity


def test_threads_never_share_a_slot():
    slots = SlotAllocator(64)
    errors: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(300):
                mine = slots.alloc(5)
                if mine is not None:
                    slots.free(mine)
        except Exception as error:  # noqa: BLE001 - reported below
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    slots.check_integrity()
    assert slots.available == 64
