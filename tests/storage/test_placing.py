"""worker_cpus: workers stay where their owner wants them, and a CPU that cannot be is refused at open."""

from __future__ import annotations

import os
import sys
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


def test_a_cpu_that_is_not_ours_is_refused_at_open(kit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placing.os, "sched_getaffinity", lambda pid: {0, 1, 2, 3, 8})
    with pytest.raises(ConfigError, match=r"CPU 7 is none that this process may use; those are 0-3, 8$"):
        kit.open(kit.Plain(), settings=SessionSettings(worker_cpus=(1, 7)))


def test_a_cpu_that_was_taken_away_since_is_no_error(kit: Any, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    def refuse(pid: int, cpus: object) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(placing.os, "sched_setaffinity", refuse)
    session = kit.open(kit.Plain(), settings=SessionSettings(worker_cpus=(min(os.sched_getaffinity(0)),)))
    assert session.set(kit.hashes(1), kit.sources(1)) == [Outcome.STORED]
    assert "does not stay on CPU" in caplog.text
