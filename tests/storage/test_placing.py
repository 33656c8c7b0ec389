"""worker_cpus: workers stay where their owner wants them, and a CPU that cannot be is refused at open."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from hicache_core.errors import ConfigError
from hicache_core.plugin.spec import hookimpl
from hicache_core.storage import SessionSettings, placing
from hicache_core.types import Outcome, Page

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="threads are kept on a CPU on Linux only")


def test_each_worker_stays_on_its_cpu(kit: Any) -> None:
    where: list[set[int]] = []

    class Telling(kit.Plain):  # type: ignore[misc]
        @hookimpl
        def batch_get(self, keys: Sequence[str], pages: Sequence[Page]) -> list[Outcome]:
            where.append(os.sched_getaffinity(0))
            return [Outcome.MISS] * len(keys)

    before = os.sched_getaffinity(0)
    last = max(before)
    session = kit.open(Telling(), settings=SessionSettings(read_workers=1, worker_cpus=(last,)))
    session.get(kit.hashes(1), kit.rooms(1))
    assert where == [{last}]
    assert os.sched_getaffinity(0) == before  # the caller's thread


def test_workers_take_the_cpus_in_turn(kit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr("hicache_core.storage.workers.stay_on", asked.append)
    monkeypatch.setattr(placing.os, "sched_getaffinity", lambda pid: {0, 1, 4})
    session = kit.open(kit.Plain(), settings=SessionSettings(read_workers=3, worker_cpus=(4, 1)))
    session.get(kit.hashes(1), kit.rooms(1))
    kit.until(lambda: len(asked) == 3)
    assert sorted(asked) == [1, 4, 4]


def test_whoever_takes_a_held_workers_place_takes_its_cpu(kit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, int] = {}
    monkeypatch.setattr(
        "hicache_core.storage.workers.stay_on", lambda cpu: asked.setdefault(threading.current_thread().name, cpu)
    )
    monkeypatch.setattr(placing.os, "sched_getaffinity", lambda pid: {0, 1, 4})
    held, freed, where = threading.Event(), threading.Event(), []

    class Holding(kit.Plain):  # type: ignore[misc]
        @hookimpl
        def batch_get(self, keys: Sequence[str], pages: Sequence[Page]) -> list[Outcome]:
            where.append(threading.current_thread().name)
            held.set()
            assert freed.wait(10)
            return [Outcome.MISS] * len(keys)

    session = kit.open(Holding(), settings=SessionSettings(read_workers=2, worker_cpus=(0, 1, 4)))
    try:
        for count in (3, 4):  # both workers are held, one after the other
            handle = session.submit_get(kit.hashes(1), kit.rooms(1))
            assert held.wait(10)
            held.clear()
            handle.abandon()
            kit.until(lambda count=count: len(asked) == count)
    finally:
        freed.set()
    first, second = (asked[name] for name in where)
    assert list(asked.values())[2:] == [first, second]


@pytest.mark.parametrize("wrong", [1.0, "1", True])
def test_what_is_no_number_of_a_cpu_is_refused_at_open(kit: Any, monkeypatch: pytest.MonkeyPatch, wrong: Any) -> None:
    monkeypatch.setattr(placing.os, "sched_getaffinity", lambda pid: {0, 1})
    with pytest.raises(ConfigError, match=f"worker_cpus: CPU {wrong!r} is none"):
        kit.open(kit.Plain(), settings=SessionSettings(worker_cpus=(wrong,)))


def test_a_cpu_that_is_not_ours_is_refused_at_open(kit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placing.os, "sched_getaffinity", lambda pid: {0, 1, 2, 3, 8})
    with pytest.raises(ConfigError, match=r"CPU 7 is none .*; name some of 0-3, 8, or leave it out$"):
        kit.open(kit.Plain(), settings=SessionSettings(worker_cpus=(1, 7)))


def test_a_cpu_that_was_taken_away_since_is_no_error(kit: Any, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    def refuse(pid: int, cpus: object) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(placing.os, "sched_setaffinity", refuse)
    session = kit.open(kit.Plain(), settings=SessionSettings(worker_cpus=(min(os.sched_getaffinity(0)),)))
    assert session.set(kit.hashes(1), kit.sources(1)) == [Outcome.STORED]
    assert "does not stay on CPU" in caplog.text


def test_workers_may_stay_where_the_thread_that_opens_may_not(kit: Any) -> None:
    """An engine keeps its own threads on some CPUs, and wants ours on others."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two CPUs")
    first, last = min(os.sched_getaffinity(0)), max(os.sched_getaffinity(0))
    kept: list[set[int]] = []

    def on_one_cpu() -> None:
        os.sched_setaffinity(0, {first})
        kit.open(kit.Plain(), settings=SessionSettings(worker_cpus=(last,)))
        kept.append(os.sched_getaffinity(0))

    thread = threading.Thread(target=on_one_cpu)
    thread.start()
    thread.join()
    assert kept == [{first}]
