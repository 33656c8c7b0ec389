import threading
from collections.abc import Callable

import pytest

from hicache_core.controller.mailbox import Mailbox
from hicache_core.controller.sync import InProcessRank, InProcessRanks, RankSync, SingleRank
from hicache_core.errors import MisuseError


def on_every_rank(group: InProcessRanks, work: Callable[[InProcessRank], object]) -> list[object]:
    results: list[object] = [None] * group.size

    def run(rank: int) -> None:
        try:
            results[rank] = work(group.member(rank))
        except MisuseError as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(group.size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    return results


def test_one_rank_agrees_with_itself() -> None:
    assert SingleRank().minimum([3, 1]) == [3, 1]
    assert SingleRank().maximum([]) == []


def test_ranks_get_the_same_minimum_and_maximum() -> None:
    group = InProcessRanks(3)
    results = on_every_rank(group, lambda me: (me.minimum([me.rank, 5 - me.rank]), me.maximum([me.rank])))
    assert results == [([0, 3], [2])] * 3
    assert group.calls == 2


def test_leaving_the_lock_step_is_an_error_on_every_rank() -> None:
    group = InProcessRanks(2)
    results = on_every_rank(group, lambda me: me.minimum([1] * (1 + me.rank)))
    assert all(isinstance(result, MisuseError) and "lock step" in str(result) for result in results)


def test_a_rank_that_does_not_come_is_an_error() -> None:
    with pytest.raises(MisuseError, match="did not come"):
        InProcessRanks(2, timeout=0.01).member(0).minimum([1])


class Work:
    def __init__(self) -> None:
        self.value = -1
        self.committed: list[int] = []

    def poll(self) -> int:
        return self.value

    def commit(self, agreed: int) -> None:
        self.committed.append(agreed)


def finished(mailbox: Mailbox, value: int) -> Work:
    work = Work()
    mailbox.watch(work)
    work.value = value
    mailbox.post(work)
    return work


def test_one_rank_commits_in_the_order_of_completion() -> None:
    mailbox = Mailbox(SingleRank())
    slow = Work()
    mailbox.watch(slow)
    quick = finished(mailbox, 7)
    assert mailbox.wait(0)
    assert mailbox.settle() == 1
    assert (slow.committed, quick.committed) == ([], [7])
    assert not mailbox.wait(0)
    slow.value = 0
    mailbox.post(slow)
    mailbox.post(slow)
    assert mailbox.settle() == 1
    assert slow.committed == [0]
    assert len(mailbox) == 0


def test_what_was_forgotten_is_not_committed() -> None:
    mailbox = Mailbox(SingleRank())
    work = finished(mailbox, 1)
    mailbox.forget(work)
    assert mailbox.settle() == 0
    assert work.committed == []


def test_calls_run_on_the_engines_thread() -> None:
    mailbox = Mailbox(SingleRank())
    ran: list[threading.Thread] = []
    other = threading.Thread(target=lambda: mailbox.call(lambda: ran.append(threading.current_thread())))
    other.start()
    assert mailbox.wait(10)
    other.join(10)
    mailbox.settle()
    assert ran == [threading.current_thread()]


def test_ranks_commit_what_all_have_done_with_the_least_result() -> None:
    group = InProcessRanks(2)

    def rank(me: RankSync) -> tuple[list[int], list[int]]:
        mailbox = Mailbox(me)
        first, second = Work(), Work()
        for work in (first, second):
            mailbox.watch(work)
        second.value = 4 + me.rank
        first.value = 9 if me.rank else -1
        mailbox.settle()
        return first.committed, second.committed

    assert on_every_rank(group, rank) == [([], [4]), ([], [4])]
