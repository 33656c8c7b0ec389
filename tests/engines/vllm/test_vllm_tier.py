"""The tier through vLLM's own manager: store, evict, look up, load, compare; restart; what a user sees of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Start = Callable[..., Any]


def test_an_evicted_chunk_comes_back_with_its_bytes(start: Start, tier_config: dict[str, Any], harness: Any) -> None:
    engine = start(tier_config)
    keys = [harness.key_of(i) for i in range(2 * harness.CHUNKS)]
    engine.store(keys[: harness.CHUNKS])
    second = engine.store(keys[harness.CHUNKS :])
    assert second.evicted_keys == keys[: harness.CHUNKS]
    assert engine.verdicts(keys[-1]) == ["HIT"]
    assert engine.verdicts(keys[0]) == ["RETRY", "HIT"]
    assert (engine.loaded(keys[0]) == harness.bytes_of(keys[0])).all()


@pytest.mark.vllm_since(0, 33)
def test_a_hit_counts_as_one_of_the_disk(start: Start, tier_config: dict[str, Any], harness: Any) -> None:
    engine = start(tier_config)
    keys = [harness.key_of(0)]
    engine.store(keys)
    engine.evict()
    assert engine.comes_back(keys[0])
    with engine.lock:
        assert engine.manager.get_load_source(keys[0], engine.context).name == "DISK"


def test_a_restart_finds_what_was_stored(start: Start, tier_config: dict[str, Any], harness: Any) -> None:
    keys = [harness.key_of(i) for i in range(harness.CHUNKS)]
    first = start(tier_config)
    first.store(keys)
    first.shut_down()
    second = start(tier_config)
    assert all(second.comes_back(key) for key in keys)
    assert second.verdicts(harness.key_of(99)) == ["RETRY", "MISS"]


def test_lookups_of_a_step_are_one_question(start: Start, tier_config: dict[str, Any], harness: Any) -> None:
    engine = start(tier_config)
    asked: list[list[bytes]] = []
    ask = engine.tier._courier.ask
    engine.tier._courier.ask = lambda keys: (asked.append(keys), ask(keys))
    keys = [harness.key_of(i) for i in range(50)]
    assert {engine.lookup(key) for key in keys} == {"RETRY"}
    assert {engine.lookup(key) for key in keys} == {"RETRY"}
    engine.settle()
    assert asked == [keys]
    assert {engine.lookup(key) for key in keys} == {"MISS"}
    engine.step()
    assert asked == [keys], "a verdict stays as long as its request"
    engine.end_request()
    assert len(engine.tier._verdicts) == 0


def test_all_keys_of_a_prompt_get_their_answers_in_one_step(
    start: Start, tier_config: dict[str, Any], harness: Any
) -> None:
    """A scheduler asks for the whole prompt in each step and waits while any answer is RETRY."""
    engine = start(tier_config, chunks=16)
    keys = [harness.key_of(i) for i in range(8)]
    engine.store(keys)
    engine.shut_down()
    engine = start(tier_config, chunks=16)
    prompt = [*keys, harness.key_of(100), harness.key_of(101)]
    rounds: list[list[str]] = []

    def all_final() -> bool:
        rounds.append([engine.lookup(key) for key in prompt])
        return "RETRY" not in rounds[-1] and "HIT_PENDING" not in rounds[-1]

    engine.until(all_final)
    assert rounds[-1] == ["HIT"] * 8 + ["MISS"] * 2


def test_groups_share_hashes_but_no_pages(start: Start, tier_config: dict[str, Any], harness: Any) -> None:
    groups = ((16, ("full0", "full1")), (16, ("window0",)))
    engine = start(tier_config, groups=groups)
    both = [harness.key_of(1, group) for group in (0, 1)]
    engine.store(both)
    names = [path.name for path in harness.page_files(Path(tier_config["options"]["root"]))]
    assert len(names) == 2
    assert sum(".kv_group1." in name for name in names) == 1
    engine.evict()
    assert [engine.comes_back(key) for key in both] == [True, True]
    assert not engine.comes_back(harness.key_of(1, 2))


def test_a_row_is_stored_as_it_lies_in_memory(start: Start, tier_config: dict[str, Any], harness: Any) -> None:
    engine = start(tier_config)
    key = harness.key_of(5)
    engine.store([key])
    (page,) = harness.page_files(Path(tier_config["options"]["root"]))
    assert key[:-4].hex() in page.name
    assert page.read_bytes()[64:] == harness.bytes_of(key).tobytes()


@pytest.mark.vllm_since(0, 33)
def test_metrics_and_labels(start: Start, tier_config: dict[str, Any], harness: Any) -> None:
    engine = start(tier_config)
    keys = [harness.key_of(i) for i in range(3)]
    engine.store(keys)
    engine.evict()
    assert engine.comes_back(keys[0])
    assert not engine.comes_back(harness.key_of(77))
    with engine.lock:
        stats = engine.manager.get_stats()
        labels = engine.manager.config_info()[1]
    values = stats.data["data"]
    pages = values["vllm:kv_offload_hicache_pages"]
    assert pages["file", "load", "hit"] == 1
    assert pages["file", "store", "stored"] == 3 + harness.CHUNKS
    assert values["vllm:kv_offload_hicache_lookups"] == {("file", "hit"): 1, ("file", "miss"): 1}
    assert values["vllm:kv_offload_hicache_breaker_open"]["file", "read"] == 0
    assert labels["hicache_backend"] == "file"
    assert labels["hicache_namespace"] == engine.tier.session.namespace
    assert set(type(engine.tier).config_info_keys({})) < set(labels)
    assert set(type(engine.tier).build_metric_definitions({})) <= set(values)
    with engine.lock:
        assert engine.tier.get_stats() is None, "counters are handed out once"


@pytest.mark.vllm_since(0, 27)
def test_kv_events_on_demand(start: Start, tier_config: dict[str, Any], harness: Any) -> None:
    engine = start({**tier_config, "enable_kv_events": True, "locality": "REMOTE"}, events=True)
    keys = [harness.key_of(i) for i in range(2)]
    engine.store(keys)
    (event,) = engine.tier.take_events()
    assert (event.keys, event.medium.value, event.removed) == (keys, "STORAGE", False)
    assert event.locality.value == engine.tier.locality.value == "REMOTE"
    assert list(engine.tier.take_events()) == []


@pytest.mark.vllm_since(0, 27)
def test_no_kv_events_unless_somebody_takes_them(start: Start, tier_config: dict[str, Any], harness: Any) -> None:
    for tier, events in (({"enable_kv_events": True}, False), ({}, True)):
        engine = start({**tier_config, **tier}, events=events)
        engine.store([harness.key_of(1)])
        assert list(engine.tier.take_events()) == []


def test_a_reset_waits_for_transfers(start: Start, tier_config: dict[str, Any], harness: Any) -> None:
    engine = start(tier_config)
    keys = [harness.key_of(i) for i in range(harness.CHUNKS)]
    engine.put(keys)
    engine.reset()
    assert not engine.tier._open
    assert all(engine.comes_back(key) for key in keys), "the store keeps its pages over a reset"


def test_shutdown_lets_go_of_everything(
    start: Start, tier_config: dict[str, Any], harness: Any, caplog: pytest.LogCaptureFixture
) -> None:
    from hicache_core.adapters.vllm import engine as engine_types

    before = set(threading.enumerate())
    engine = start(tier_config)
    engine.store([harness.key_of(1)])
    assert not engine.comes_back(harness.key_of(2))
    region = engine.manager.primary_tier._mmap_region
    tier = engine.tier
    engine.shut_down()
    assert region.mmap_obj is None, "vLLM's memory stayed mapped"
    tier.shutdown()
    assert {thread for thread in threading.enumerate() if thread.name.startswith("hicache")} <= before
    assert tier.lookup(harness.key_of(1), engine.context) == engine_types.MISS


def test_a_job_after_the_end_is_reported_failed(start: Start, tier_config: dict[str, Any], harness: Any) -> None:
    engine = start(tier_config)
    tier, context = engine.tier, engine.context
    engine.shut_down()
    tier.submit_store(harness.job(7, [harness.key_of(1)], [0], promotion=False, context=context))
    (result,) = tier.get_finished_jobs()
    assert (result.job_id, result.success) == (7, False)
    tier.drain_jobs()
