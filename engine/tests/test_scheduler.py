from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hicache_engine.errors import RequestAborted, RequestError
from hicache_engine.job import Completion
from hicache_engine.sampling import Sampler, SamplingParams

from hicache_core.errors import ConfigError, TransferError

PAGE, CHUNK = 8, 32
SHORT = SamplingParams(max_tokens=12, ignore_eos=True)


def prompts(count, *, shared=40, tail=30, seed=0):
    """Prompts over few common beginnings, so that they share, split and evict."""
    random_ids = np.random.default_rng(seed)
    bases = [random_ids.integers(0, 256, shared).astype(np.uint32) for _ in range(3)]
    return [
        np.concatenate(
            [bases[i % 3], random_ids.integers(0, 256, int(random_ids.integers(1, tail))).astype(np.uint32)]
        )
        for i in range(count)
    ]


def texts(ends):
    return [end.tokens for end in ends]


@pytest.fixture
def expected(make_engine):
    """expected(prompts) -> tokens each gives alone, without any cache."""

    def run(asked, params=SHORT):
        engine = make_engine()
        return [engine.generate([p], params, reuse_limit=0, cache_salt=str(i))[0].tokens for i, p in enumerate(asked)]

    return run


def test_tiers_add_up_to_the_prompt_and_the_last_token_is_computed(make_engine):
    engine, (prompt,) = make_engine(), prompts(1)
    prompt = prompt[: 5 * PAGE]
    first, second = (engine.generate([prompt], SHORT)[0] for _ in range(2))
    assert first.usage.by_tier == {"device": 0, "host": 0, "storage": 0, "recomputed": 40}
    assert second.usage.by_tier == {"device": 32, "host": 0, "storage": 0, "recomputed": 8}
    assert first.tokens == second.tokens
    assert second.usage.completion_tokens == 12
    assert second.reason == "length"


def test_what_left_the_device_comes_back_from_host_memory(make_engine):
    engine = make_engine(pages=12, hicache_ratio=8.0)
    asked = prompts(6, seed=2)
    before = [engine.generate([p], SHORT)[0] for p in asked]
    assert engine.cache.drain(30)
    after = [engine.generate([p], SHORT)[0] for p in asked]
    assert texts(before) == texts(after)
    assert sum(end.usage.host for end in after) > 0


@pytest.mark.parametrize("write_policy", ["write_through", "write_through_selective", "write_back"])
def test_many_at_once_in_tiny_pools_give_what_each_gives_alone(make_engine, expected, write_policy):
    asked = prompts(24, seed=3)
    engine = make_engine(pages=30, hicache_ratio=2.0, max_running=6, hicache_write_policy=write_policy)
    assert texts(engine.generate(asked, SHORT)) == expected(asked)
    assert texts(engine.generate(asked[::-1], SHORT)) == expected(asked)[::-1]


@pytest.mark.parametrize("policy", ["best_effort", "wait_complete", "timeout"])
def test_many_at_once_over_a_store(make_engine, expected, tmp_path, policy):
    asked = prompts(16, seed=4)
    options = {"root": str(tmp_path / "store")}
    settings = {"hicache_ratio": 3.0, "max_running": 5, "hicache_storage_prefetch_policy": policy}
    first = make_engine(pages=24, backend="file", options=options, **settings)
    assert texts(first.generate(asked, SHORT)) == expected(asked)
    assert first.cache.drain(30)
    second = make_engine(pages=24, backend="file", options=options, **settings)
    ends = second.generate(asked, SHORT)
    assert texts(ends) == expected(asked)
    if policy == "wait_complete":
        assert sum(end.usage.storage for end in ends) > 0


def test_where_the_pool_is_full_the_youngest_waits(make_engine, expected):
    asked = prompts(6, seed=5)
    params = SamplingParams(max_tokens=60, ignore_eos=True)
    engine = make_engine(pages=26, hicache_ratio=1.0, max_running=6)
    jobs = [engine.submit(p, params) for p in asked]
    engine.run_until_idle()
    assert sum(job.preemptions for job in jobs) > 0
    assert [tuple(job.outputs) for job in jobs] == expected(asked, params)


def test_a_prefix_that_ends_at_a_chunk_gives_the_same_bits(make_engine, tmp_path):
    prompt = np.random.default_rng(6).integers(0, 256, 4 * CHUNK + 5).astype(np.uint32)
    options = {"root": str(tmp_path / "store")}
    writer = make_engine(backend="file", options=options)
    (cold,) = writer.generate([prompt], SHORT, keep_logits=True)
    assert writer.cache.backup_barrier(prompt, 30)
    for boundary in (CHUNK, 2 * CHUNK, 4 * CHUNK):
        reader = make_engine(backend="file", options=options)
        (warm,) = reader.generate([prompt], SHORT, keep_logits=True, reuse_limit=boundary)
        assert warm.usage.storage == boundary
        assert torch.equal(cold.logits, warm.logits)
        assert cold.tokens == warm.tokens
    (warm,) = make_engine(backend="file", options=options).generate([prompt], SHORT, keep_logits=True, reuse_limit=40)
    assert warm.usage.storage == 40
    assert (cold.logits - warm.logits).abs().max() <= 1e-3


@pytest.mark.parametrize("layout", ["layer_first", "page_first", "page_first_direct", "page_head"])
def test_every_layout_brings_the_same_bits_back(make_engine, tmp_path, layout):
    prompt = np.random.default_rng(7).integers(0, 256, 2 * CHUNK + 3).astype(np.uint32)
    settings = {"backend": "file", "options": {"root": str(tmp_path / "store")}, "hicache_mem_layout": layout}
    settings |= {"hicache_io_backend": "direct"} if layout == "page_first_direct" else {}
    writer = make_engine(**settings)
    (cold,) = writer.generate([prompt], SHORT, keep_logits=True)
    assert writer.cache.drain(30)
    (warm,) = make_engine(**settings).generate([prompt], SHORT, keep_logits=True)
    assert warm.usage.storage == 2 * CHUNK
    assert torch.equal(cold.logits, warm.logits)
    assert cold.tokens == warm.tokens


def test_a_store_that_fails_costs_only_time(make_engine, expected, tmp_path):
    asked = prompts(8, seed=7)
    root = str(tmp_path / "store")
    writer = make_engine(backend="file", options={"root": root})
    writer.generate(asked, SHORT)
    assert writer.cache.drain(30)
    hurt = {"inner": "file", "root": root, "seed": 3, "fail": 0.2, "flip": 0.2, "truncate": 0.2}
    engine = make_engine(backend="fault", options=hurt, dead_store=True)
    assert texts(engine.generate(asked, SHORT)) == expected(asked)
    down = make_engine(backend="fault", options={"inner": "file", "root": root, "fail": 1.0}, dead_store=True)
    ends = down.generate(asked, SHORT)
    assert texts(ends) == expected(asked)
    assert all(end.usage.storage == 0 for end in ends)


def test_others_weights_and_tenants_pages_are_not_used(make_engine, tmp_path):
    (prompt,) = prompts(1, shared=60, seed=8)
    options = {"root": str(tmp_path / "store")}
    writer = make_engine(backend="file", options=options)
    writer.generate([prompt], SHORT)
    assert writer.cache.drain(30)
    (end,) = make_engine(backend="file", options=options, tenant="b").generate([prompt], SHORT)
    assert end.usage.storage == 0
    assert end.usage.ended == "miss"


def test_a_salt_keeps_requests_apart(make_engine):
    engine, (prompt,) = make_engine(), prompts(1)
    engine.generate([prompt], SHORT, cache_salt="a")
    (other,) = engine.generate([prompt], SHORT, cache_salt="b")
    (same,) = engine.generate([prompt], SHORT, cache_salt="a")
    assert other.usage.cached == 0
    assert same.usage.device > 0


def test_a_load_that_fails_is_computed_instead(make_engine, expected, monkeypatch):
    asked = prompts(4, seed=9)
    engine = make_engine(pages=12, hicache_ratio=8.0)
    engine.generate(asked, SHORT)
    assert engine.cache.drain(30)
    real, failures = engine.cache.wait_layer, []

    def wait_layer(producer, layer):
        if layer == 1 and len(failures) < 3:
            failures.append(producer)
            raise TransferError("injected")
        real(producer, layer)

    monkeypatch.setattr(engine.cache, "wait_layer", wait_layer)
    ends = [engine.generate([p], SHORT)[0] for p in asked]
    assert len(failures) == 3
    assert texts(ends) == expected(asked)


@pytest.mark.parametrize("seed", range(6))
def test_aborting_anywhere_leaves_nothing_behind(make_engine, expected, tmp_path, seed):
    chance = random.Random(seed)
    asked = prompts(14, seed=seed)
    engine = make_engine(
        pages=26, hicache_ratio=3.0, max_running=5, backend="file", options={"root": str(tmp_path / "store")}
    )
    engine.generate(asked[:5], SHORT)
    ends: dict[str, Completion] = {}

    def listen(event):
        if isinstance(event, Completion):
            ends[event.rid] = event

    jobs = []
    for prompt in asked:
        jobs.append(engine.submit(prompt, SHORT, listener=listen))
        for _ in range(chance.randrange(3)):
            engine.step()
        if chance.random() < 0.5:
            engine.scheduler.abort(chance.choice(jobs))
    while engine.scheduler.busy:
        if chance.random() < 0.1:
            engine.scheduler.abort(chance.choice(jobs))
        if not engine.step():
            engine.wait(1.0)
    assert len(ends) == len(jobs)
    for job, tokens in zip(jobs, expected(asked), strict=True):
        end = ends[job.rid]
        assert end.reason in ("length", "abort")
        assert end.tokens == tokens[: len(end.tokens)]
        assert end.reason == "abort" or end.tokens == tokens


def test_a_request_that_finds_no_page_although_nothing_runs_ends_in_an_error(make_engine):
    engine = make_engine(pages=16)
    kept = engine.pool.alloc(12)
    with pytest.raises(RequestAborted, match="8 device pages are needed, 4 of 16 can be had"):
        engine.generate(["x" * 60], SHORT)
    (end,) = engine.generate(["x" * 10], SHORT)
    assert end.reason == "length"
    engine.pool.free(kept)


@pytest.mark.parametrize("bad_at", [0, 3])
def test_logits_that_are_no_numbers_end_their_own_request_alone(make_engine, expected, monkeypatch, bad_at):
    engine, asked = make_engine(), prompts(3)
    real = Sampler.__call__

    def poisoned(self, logits):
        if self._params.seed == 13 and left_until_bad.pop() == 0:
            logits = torch.full_like(logits, float("nan"))
        return real(self, logits)

    left_until_bad = list(range(bad_at + 1))
    monkeypatch.setattr(Sampler, "__call__", poisoned)
    bad = SamplingParams(max_tokens=12, ignore_eos=True, temperature=1.0, seed=13)
    ends = {}
    for index, prompt in enumerate(asked):
        engine.submit(
            prompt,
            bad if index == 1 else SHORT,
            listener=lambda event, index=index: ends.update({index: event}),
        )
    while engine.scheduler.busy:
        if not engine.step():
            engine.wait(1.0)
    assert ends[1].reason == "error"
    assert "no token can be drawn" in ends[1].error
    assert len(ends[1].tokens) == bad_at
    assert [ends[0].tokens, ends[2].tokens] == expected([asked[0], asked[2]])


def test_what_can_never_run_is_refused_at_once(make_engine):
    engine = make_engine(pages=8)
    with pytest.raises(RequestError, match="no tokens"):
        engine.submit("")
    with pytest.raises(RequestError, match="device pool of 8 pages of 8") as caught:
        engine.submit("x" * 60, SHORT)
    assert caught.value.param == "max_tokens"
    with pytest.raises(RequestError, match="vocabulary of 257"):
        engine.submit(np.array([300], np.uint32))
    assert not engine.scheduler.busy


@pytest.mark.parametrize("chunk", [0, 12, 4])
def test_a_chunk_is_whole_pages(make_engine, model, chunk):
    options = make_engine().scheduler.settings
    with pytest.raises(ConfigError, match=f"chunk is {chunk}"):
        type(options)(chunk=chunk).check(PAGE)


def test_the_end_token_and_stop_texts_end_an_answer(make_engine):
    engine = make_engine()
    (free,) = engine.generate(["tell me"], SamplingParams(max_tokens=40, ignore_eos=True))
    stop = free.text[3:6]
    (cut,) = engine.generate(["tell me"], SamplingParams(max_tokens=40, ignore_eos=True, stop=(stop,)))
    assert cut.reason == "stop"
    assert cut.text == free.text[: free.text.find(stop)]
