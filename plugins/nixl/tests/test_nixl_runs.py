"""Memory and descriptors lent to transfers: nobody gets them back before the last has ended, whatever is raised."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hicache_nixl import transfers
from hicache_nixl.agents import NixlError, Transfer
from hicache_nixl.transfers import Job, Run

from hicache_core.storage.seals import aligned_memory

PAGE = 4096


class Going:
    """A transfer that ends when it is waited for."""

    def __init__(self, agent: FakeAgent) -> None:
        self._agent = agent
        agent.under_way.add(self)

    def ended(self) -> bool:
        return self not in self._agent.under_way

    def wait(self) -> None:
        self._agent.under_way.discard(self)
        if self._agent.waits:
            raise self._agent.waits.pop(0)


class FakeAgent:
    """Registers and begins; moves nothing. waits: what the first waits raise."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.under_way: set[Going] = set()
        self.lent: list[Any] = []
        self.waits: list[BaseException] = []
        self.refuses: BaseException | None = None

    def lend(self, kind: str, targets: list[Any]) -> Any:
        self.lent.append(targets)
        return targets

    def take_back(self, lent: Any) -> None:
        self.lent.remove(lent)

    def begin(self, *args: Any) -> Going:
        if self.refuses is not None:
            raise self.refuses
        return Going(self)


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> FakeAgent:
    monkeypatch.setattr(transfers, "TRANSFER_BYTES", PAGE)  # a page each
    return FakeAgent()


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[list[Job]]:
    fds = [os.open(tmp_path / str(number), os.O_RDWR | os.O_CREAT) for number in range(4)]
    yield [Job(number, fd, [aligned_memory(PAGE)], PAGE) for number, fd in enumerate(fds)]
    for fd in fds:
        os.close(fd)


def run_of(agent: FakeAgent, after: Any) -> Run:
    return Run(agent, aligned_memory(PAGE * 4), lambda *_: False, "WRITE", direct=False, after=after)  # type: ignore[arg-type]


def test_whoever_is_told_may_raise_and_the_others_are_waited_for(agent: FakeAgent, jobs: list[Job]) -> None:
    under_way: list[int] = []

    def after(job: Job) -> None:
        under_way.append(len(agent.under_way))
        raise ValueError(f"page {job.position}")

    with pytest.raises(ValueError, match="page 0"):
        run_of(agent, after).move(jobs)
    assert under_way == [3, 2, 1, 0]
    assert (agent.under_way, agent.lent) == (set(), [])


def test_an_interrupt_while_one_is_waited_for_takes_all_back(agent: FakeAgent, jobs: list[Job]) -> None:
    agent.waits = [KeyboardInterrupt()]
    told: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        run_of(agent, lambda job: told.append(job.position)).move(jobs)
    assert told == [1, 2, 3]
    assert (agent.under_way, agent.lent) == (set(), [])


def test_what_begins_badly_is_taken_back(agent: FakeAgent, jobs: list[Job]) -> None:
    agent.refuses = MemoryError()
    with pytest.raises(MemoryError):
        run_of(agent, lambda job: None).move(jobs)
    assert agent.lent == []


def test_jobs_that_raise_leave_nothing_under_way(agent: FakeAgent, jobs: list[Job]) -> None:
    def some() -> Iterator[Job]:
        yield from jobs[:2]
        raise KeyboardInterrupt

    told: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        run_of(agent, lambda job: told.append(job.position)).move(some())
    assert told == [0, 1]
    assert (agent.under_way, agent.lent) == (set(), [])


@pytest.mark.parametrize("last", ["DONE", "ERR"])
def test_an_interrupt_is_raised_when_the_transfer_has_ended(last: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow:
        looks = released = 0

        def transfer(self, handle: object) -> str:
            return "PROC"

        def check_xfer_state(self, handle: object) -> str:
            self.looks += 1
            return last if self.looks == 4 else "PROC"

        def release_xfer_handle(self, handle: object) -> None:
            self.released += 1

    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("hicache_nixl.agents.time.sleep", interrupted)
    monkeypatch.setattr("hicache_nixl.agents.BUSY", 60.0)
    slow = Slow()
    with pytest.raises(KeyboardInterrupt):
        Transfer(slow, object(), "a transfer").wait()
    assert (slow.looks, slow.released) == (4, 1)


def test_a_transfer_that_fails_says_so_each_time() -> None:
    class Failing:
        def transfer(self, handle: object) -> str:
            raise RuntimeError("no queue")

        def release_xfer_handle(self, handle: object) -> None: ...

    transfer = Transfer(Failing(), object(), "a transfer")
    for _ in range(2):
        with pytest.raises(NixlError, match="a transfer: no queue"):
            transfer.wait()
