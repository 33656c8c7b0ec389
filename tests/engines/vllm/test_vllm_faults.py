"""Stores that hang, fail, lie and lose: recomputation for vLLM, no other bytes, no lost job, no standstill."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

Start = Callable[..., Any]
Held = Callable[..., Any]


def results(tier: Any) -> list[Any]:
    return list(tier.get_finished_jobs())


def wait_for_job(tier: Any, bound: float = 60.0) -> Any:
    """The next result, as a scheduler that steps would get it."""
    pause = threading.Event()
    for _ in range(int(bound / 0.001)):
        found = results(tier)
        if found:
            assert len(found) == 1
            return found[0]
        pause.wait(0.001)
    raise AssertionError("no job came back")


# -- hanging stores


def test_a_read_that_outlives_its_deadline_never_writes_into_a_row(held: Held, harness: Any) -> None:
    engine, store = held()
    key = harness.key_of(1)
    engine.store([key])
    engine.evict()
    store.held = {"batch_get"}
    assert engine.verdicts(key) == ["RETRY", "MISS"], "the load failed at its deadline, and no later"
    assert store.entered.acquire(timeout=harness.BOUND)
    engine.rows[:] = 0x5A  # vLLM has taken the rows back
    store.release.set()
    engine.until(lambda: engine.tier.session.status().running["read"] == 0)
    assert (engine.rows == 0x5A).all()


def test_a_write_that_hangs_keeps_its_rows_until_the_store_lets_go(held: Held, harness: Any) -> None:
    engine, store = held(hold=60.0)
    store.held = {"batch_set"}
    key = harness.key_of(1)
    engine.put([key])
    assert store.entered.acquire(timeout=harness.BOUND)
    ledger = engine.tier.session.ledger
    engine.until(lambda: ledger.count("abandoned"))
    engine.step()
    assert engine.tier._open, "the store still reads the row"
    assert engine.put([harness.key_of(10 + i) for i in range(harness.CHUNKS)]) is None, "and vLLM has it pinned"
    store.release.set()
    engine.settle()
    assert not engine.tier._open
    (page,) = store.pages.values()
    assert page[64:] == harness.bytes_of(key).tobytes()


def test_a_write_that_never_ends_is_reported_failed_after_hold(
    held: Held, harness: Any, caplog: pytest.LogCaptureFixture
) -> None:
    engine, store = held(hold=0.1)
    store.held = {"batch_set"}
    key = harness.key_of(1)
    engine.put([key])
    engine.settle()
    assert "has not let go of 1 rows" in caplog.text
    # The store reads on, from a row that is something else by now: the page is damaged, and a miss.
    engine.rows[:] = 0
    store.release.set()
    engine.until(lambda: engine.tier.session.status().running["write"] == 0)
    engine.reset()
    assert not engine.comes_back(key)


def test_other_writes_do_not_wait_behind_one_that_hangs(held: Held, harness: Any) -> None:
    """The breaker opens after three of them; from then on each store is refused at once."""
    engine, store = held(hold=0.1)
    store.held = {"batch_set"}
    for i in range(8 * harness.CHUNKS):
        engine.until(lambda i=i: engine.put([harness.key_of(i)]) is not None)
    engine.settle()
    assert not engine.tier._open
    store.held = set()


def test_draining_ends_although_the_store_does_not(held: Held, harness: Any) -> None:
    engine, store = held(hold=0.1)
    store.held = {"batch_set", "batch_get"}
    keys = [harness.key_of(i) for i in range(harness.CHUNKS)]
    for key in keys:
        engine.put([key])
    assert store.entered.acquire(timeout=harness.BOUND)
    engine.reset()
    assert not engine.tier._open
    assert not engine.manager.has_pending_work()


def test_draining_ends_without_the_courier(held: Held, harness: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Were its thread to die, the jobs would still come back."""
    engine, _ = held(hold=0.0)
    tier = engine.tier
    monkeypatch.setattr(tier, "_drain_within", 0.05)
    monkeypatch.setattr("hicache_core.adapters.vllm.tier._SLACK", 0.05)
    assert tier._courier.close(harness.BOUND)
    engine.put([harness.key_of(1)])
    engine.reset()
    assert not engine.manager.has_pending_work()


def test_a_store_that_hangs_in_lookups_is_a_miss(held: Held, harness: Any) -> None:
    engine, store = held()
    store.held = {"batch_exists"}
    assert engine.verdicts(harness.key_of(1)) == ["RETRY", "MISS"]


def test_shutdown_ends_although_the_store_hangs(held: Held, harness: Any) -> None:
    engine, store = held(hold=0.0)
    store.held = {"batch_set"}
    engine.put([harness.key_of(1)])
    assert store.entered.acquire(timeout=harness.BOUND)
    engine.shut_down()
    assert store.release.is_set()


# -- failing stores


def test_an_exception_of_the_store_is_a_failed_job(held: Held, harness: Any) -> None:
    """vLLM has work pending for ever for a job that no one reports."""
    engine, store = held()
    key = harness.key_of(1)
    engine.store([key])
    engine.evict()
    store.fails = {"batch_exists", "batch_get", "batch_set"}
    assert engine.verdicts(key)[-1] == "MISS"
    engine.store([harness.key_of(2)])
    assert not engine.tier._open
    if not hasattr(type(engine.tier).__mro__[1], "get_stats"):
        return  # 0.24 asks no tier for metrics
    with engine.lock:
        counted = engine.tier.get_stats().data["data"]["vllm:kv_offload_hicache_pages"]
    assert counted["dynamic", "store", "unavailable"] == 1


@pytest.mark.parametrize("where", ["page_hashes", "by_pool"])
def test_an_exception_in_the_tier_itself_is_a_failed_job(
    where: str, held: Held, harness: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, _ = held()

    def broken(*_: object) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(f"hicache_core.adapters.vllm.courier.{where}", broken)
    engine.store([harness.key_of(1)])
    assert engine.verdicts(harness.key_of(2)) == ["RETRY", "MISS"]
    monkeypatch.undo()
    engine.store([harness.key_of(3)])
    engine.evict()
    assert engine.comes_back(harness.key_of(3)), "the thread goes on"


def test_a_failed_load_is_a_miss_until_the_next_good_store(held: Held, harness: Any) -> None:
    """A tier that goes on answering HIT makes vLLM promote, fail and ask again without end."""
    engine, store = held()
    key = harness.key_of(1)
    engine.store([key])
    engine.evict()
    assert engine.verdicts(key)[-1] == "HIT"
    engine.evict()
    store.fails = {"batch_get"}
    assert engine.verdicts(key) == ["RETRY", "MISS"]
    store.fails = set()
    for _ in range(3):
        assert engine.verdicts(key, engine.new_request()) == ["MISS"], "without another promotion"
    engine.store([key])
    engine.evict()
    assert engine.comes_back(key)


@pytest.mark.vllm_since(0, 33)
def test_a_partial_failure_names_what_succeeded(held: Held, harness: Any) -> None:
    engine, store = held()
    keys = [harness.key_of(i) for i in range(harness.CHUNKS)]
    engine.store(keys)
    lost = next(name for name in store.pages if keys[2][:-4].hex() in name)
    del store.pages[lost]
    tier = engine.tier
    tier.submit_load(harness.job(900, keys, range(harness.CHUNKS), promotion=True, context=engine.context))
    result = wait_for_job(tier)
    assert (result.job_id, result.success) == (900, False)
    assert list(result.successful_keys) == [keys[0], keys[1], keys[3]]
    assert result.transfer_bytes == 3 * harness.ROW
    assert result.transfer_time >= 0


@pytest.mark.vllm_since(0, 33)
def test_the_manager_keeps_what_a_partly_failed_load_brought(
    start: Start, tier_config: dict[str, Any], harness: Any
) -> None:
    engine = start(tier_config)
    keys = [harness.key_of(i) for i in range(3)]
    engine.store(keys)
    engine.evict()
    path = next(p for p in pages(tier_config) if keys[1][:-4].hex() in p.name)
    os.truncate(path, 100)
    for key in keys:
        engine.lookup(key)
    engine.settle()
    for key in keys:
        engine.lookup(key)  # all three are promoted by one job
    engine.step()
    engine.settle()
    assert [engine.lookup(key) for key in keys] == ["HIT", "MISS", "HIT"]
    assert (engine.loaded(keys[2]) == harness.bytes_of(keys[2])).all()


# -- damaged pages


def pages(tier_config: dict[str, Any]) -> list[Path]:
    return sorted(path for path in Path(tier_config["options"]["root"]).glob("*/*/*") if path.is_file())


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    "damage",
    [flip, lambda path: os.truncate(path, 100), lambda path: os.truncate(path, 0)],
    ids=["flipped", "short", "empty"],
)
def test_a_damaged_page_is_a_miss_and_healed_by_the_next_store(
    damage: Callable[[Path], None], start: Start, tier_config: dict[str, Any], harness: Any
) -> None:
    engine = start(tier_config)
    key = harness.key_of(1)
    engine.store([key])
    (path,) = pages(tier_config)
    damage(path)
    engine.evict()
    assert not engine.comes_back(key)
    engine.store([key])
    engine.evict()
    assert engine.comes_back(key)
    assert engine.tier.session.ledger.count("poisoned") == 1


def test_views_are_taken_of_the_flat_memory(start: Start, tier_config: dict[str, Any], harness: Any) -> None:
    """`view[b]`, as vLLM's comments say, raises for a view of two dimensions."""
    engine = start(tier_config)
    view = engine.tier._primary_kv_view
    with pytest.raises(NotImplementedError):
        view[1]
    engine.rows[1] = 7
    row = engine.tier._row(1)
    assert (row.nbytes, bytes(row)) == (harness.ROW, b"\x07" * harness.ROW)


# -- many jobs


@pytest.mark.parametrize("seed", [1, 2])
def test_a_thousand_random_jobs_under_faults(
    seed: int, start: Start, tmp_path: Path, harness: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Every chunk that comes back is equal; every job comes back; draining ends."""
    caplog.set_level(logging.CRITICAL)
    faults = {"fail": 0.1, "flip": 0.02, "truncate": 0.02, "stale_exists": 0.02, "seed": seed}
    engine = start(harness.fault_tier(tmp_path, faults, timeout=5.0, hold=1.0), chunks=16)
    tier, draws = engine.tier, np.random.default_rng(seed)
    submitted, reported = set[int](), list[Any]()
    count_jobs(tier, submitted, reported)
    hits = 0
    while len(submitted) < 1000:
        context = engine.new_request()
        keys = [harness.key_of(int(n)) for n in draws.choice(200, draws.integers(1, 5), replace=False)]
        if draws.random() < 0.5:
            engine.put(keys, context)
        else:
            for key in keys:
                if engine.verdicts(key, context)[-1] == "HIT":
                    assert (engine.loaded(key, context) == harness.bytes_of(key)).all()
                    hits += 1
        engine.end_request(context)
    engine.reset()
    assert sorted(result.job_id for result in reported) == sorted(submitted), "each job once, none lost"
    assert not engine.manager.has_pending_work()
    assert hits > 50
    assert sum(not result.success for result in reported) > 20


def count_jobs(tier: Any, submitted: set[int], reported: list[Any]) -> None:
    """Note what goes in and what comes out."""
    finished = tier.get_finished_jobs

    def noted(submit: Callable[[Any], None]) -> Callable[[Any], None]:
        return lambda job: (submitted.add(job.job_id), submit(job))[1]

    def taken() -> list[Any]:
        found = list(finished())
        reported.extend(found)
        return found

    tier.submit_store, tier.submit_load = noted(tier.submit_store), noted(tier.submit_load)
    tier.get_finished_jobs = taken
