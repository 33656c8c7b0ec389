"""Two ranks of one model, each with its own L3 of its own temper: equal decisions, equally many collectives."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from hicache_core.controller.sync import InProcessRanks
from hicache_core.namespace import Identity
from hicache_core.pools.geometry import KVGeometry
from hicache_core.storage.opening import open_session

SEQUENCE = [(1, 2, 3, 4), (1, 2, 5), (6, 7, 8, 9, 10), (1, 2, 3, 4, 11), (1, 2, 5, 12), (6, 7, 8), (1, 2, 3, 4)]


def in_lock_step(size: int, work: Callable[[int, InProcessRanks], Any]) -> list[Any]:
    group = InProcessRanks(size)
    results: list[Any] = [None] * size

    def run(rank: int) -> None:
        try:
            results[rank] = work(rank, group)
        except BaseException as error:  # noqa: BLE001 - shown by the caller
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


class CountingRank:
    """A member that counts what it was asked."""

    def __init__(self, group: InProcessRanks, rank: int) -> None:
        self.member, self.rank, self.size, self.calls = group.member(rank), rank, group.size, 0

    def minimum(self, values: Any) -> list[int]:
        self.calls += 1
        return self.member.minimum(values)

    def maximum(self, values: Any) -> list[int]:
        self.calls += 1
        return self.member.maximum(values)


@pytest.mark.parametrize("policy", ["best_effort", "wait_complete", "timeout"])
@pytest.mark.parametrize("write", ["write_through", "write_back"])
def test_ranks_decide_alike(build_engine: Any, open_storage: Any, pages: Any, policy: str, write: str) -> None:
    def work(rank: int, group: InProcessRanks) -> Any:
        faults = {"fail": 0.2, "stale_exists": 0.2, "flip": 0.2} if rank else {}
        session = open_storage("fault", inner="memory", seed=rank, **faults)
        sync = CountingRank(group, rank)
        engine = build_engine(
            device_pages=10,
            host_pages=10,
            session=session,
            sync=sync,
            hicache_storage_prefetch_policy=policy,
            hicache_write_policy=write,
            prefetch_timeout_base=0.01,
        )
        seen = []
        for numbers in SEQUENCE:
            request = engine.cache.new_request("r", pages(*numbers))
            engine.admit(request)
            assert engine.compute(request)
            engine.cache.cache_finished_req(request)
            engine.cache.drain(0.05)
            engine.check()
            seen.append((request.report.cached, sorted(node.pages for node in engine.cache.tree.walk())))
        assert engine.cache.shutdown(30.0) or engine.host.memory.closed
        return seen, sync.calls, engine.wrong_pages

    first, second = in_lock_step(2, work)
    assert first == second
    assert any(cached for cached, _ in first[0])
    assert first[2] == 0


def test_the_least_hit_counts(build_engine: Any, open_gated: Any, store: Any, open_storage: Any, pages: Any) -> None:
    """One rank's store has four pages, the other's two."""
    seed = build_engine(session=open_storage(name="rank-0"))
    seed.run(pages(1, 2, 3, 4))
    seed.cache.shutdown(30.0)
    seed = build_engine(session=open_storage(name="rank-1"))
    seed.run(pages(1, 2))
    seed.cache.shutdown(30.0)

    def work(rank: int, group: InProcessRanks) -> Any:
        engine = build_engine(session=open_storage(name=f"rank-{rank}"), sync=group.member(rank))
        report = engine.run(pages(1, 2, 3, 4))
        engine.check_at_rest()
        return report.storage, engine.cache.shutdown(30.0)

    assert in_lock_step(2, work) == [(8, True), (8, True)]


ALIKE = ("mla", 2, 4)
STAGE = ("mla", 1, 8)
OWN_HEADS = ("mha", 2, 2)


@pytest.mark.parametrize(("shape", "writers"), [(ALIKE, 1), (STAGE, 2), (OWN_HEADS, 2)])
def test_pages_that_ranks_hold_alike_are_written_by_one(
    build_engine: Any, pages: Any, shape: Any, writers: int
) -> None:
    """MLA: all ranks hold the same bytes. A stage of a pipeline holds its own layers, an MHA rank its own heads."""
    kind, layers, width = shape
    identity = Identity("tiny", "declared:tiny", "uint8", 4, kind, 2, 1, width, layers=(0, layers))

    def work(rank: int, group: InProcessRanks) -> Any:
        session = open_session("memory", identity=identity)
        geometry = KVGeometry(kind, layers, 1, width, dtype="uint8", page_size=4)
        engine = build_engine(session=session, sync=group.member(rank), geometry=geometry)
        engine.run(pages(1, 2, 3, 4))
        engine.check_at_rest()
        stored = engine.cache.counters.stored
        assert engine.cache.shutdown(30.0)
        return stored, sum(session.ledger.as_dict()["pages"].get("set", {}).values())

    answers = in_lock_step(2, work)
    assert [stored for stored, _ in answers] == [4, 4]
    assert [written for _, written in answers] == [4, 4][:writers] + [0] * (2 - writers)
