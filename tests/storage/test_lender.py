"""A few things for many calls, each with one at a time."""

from __future__ import annotations

import threading
import time

from hicache_core.storage.lender import Lender


def test_each_is_lent_once_and_the_one_given_back_last_comes_first() -> None:
    lender = Lender(["a", "b"])
    with lender.borrow(None) as one, lender.borrow(None) as other:
        assert {one, other} == {"a", "b"}
        with lender.borrow(time.monotonic()) as none:
            assert none is None
    with lender.borrow(None) as again:
        assert again == one


def test_who_waits_gets_what_is_given_back() -> None:
    lender = Lender([0])
    got: list[int | None] = []

    def call() -> None:
        with lender.borrow(time.monotonic() + 30) as thing:
            got.append(thing)

    waiter = threading.Thread(target=call, daemon=True)
    with lender.borrow(None) as first:
        waiter.start()
    waiter.join(30)
    assert (first, got) == (0, [0])  # a thing that counts as false is a thing


def test_retiring_waits_for_the_last_and_lends_nothing_more() -> None:
    lender = Lender([1, 2])
    told: list[str] = []
    with lender.borrow(None):
        lender.retire(lambda: told.append("all back"))
        with lender.borrow(time.monotonic() + 30) as none:
            assert none is None
        assert not told
    assert told == ["all back"]
    idle = Lender([1])
    idle.retire(lambda: told.append("at once"))
    assert told == ["all back", "at once"]
