"""The replay itself, over small traces: every tier, every fault, and the arithmetic of what was lost."""

from __future__ import annotations

import json
import logging
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer import Typer
from typer.testing import CliRunner

from hicache_core.cli import replay_command
from hicache_core.cli.replay_command import open_cache
from hicache_core.errors import CapacityError, ConfigError
from hicache_core.plugin.select import choose_backend
from hicache_core.pools.device.numpy_pool import NumpyDevicePool
from hicache_core.replay.content import PageContent, replay_geometry
from hicache_core.replay.result import ReplayResult
from hicache_core.replay.runner import Replay, ReplaySettings
from hicache_core.replay.trace import TraceRequest, read_trace

SMALL = {"l1_pages": 12, "l2_pages": 24, "page_bytes": 64, "page_tokens": 8}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logger = logging.getLogger("hicache_core")
    yield
    logger.setLevel(logging.NOTSET)


def a_trace(requests: int = 60, seed: int = 0) -> list[TraceRequest]:
    """Conversations that grow, share beginnings, and come back."""
    dice, fresh = random.Random(seed), iter(range(10**6))
    talks: list[list[int]] = [[next(fresh)]]
    trace = []
    for _ in range(requests):
        talk = dice.choice(talks) if dice.random() < 0.7 else [*dice.choice(talks)[: dice.randint(0, 3)]]
        if len(talk) > 8 or talk not in talks:
            talk = talk[:4]
            talks.append(talk)
        talk += [next(fresh) for _ in range(dice.randint(0, 2))]
        trace.append(TraceRequest(0, len(talk) * 8, 1, list(talk)))
    return trace


def replay(backend: Any, trace: list[TraceRequest], **how: Any) -> ReplayResult:
    settings = ReplaySettings(**(SMALL | {"drain": True} | how))
    cache = open_cache(settings, None if backend is None else choose_backend(backend), "test")
    try:
        return Replay(cache, settings).run(trace)
    finally:
        assert cache.shutdown(30.0) or "fault" in str(backend)


def test_unlimited_storage_serves_what_the_oracle_says() -> None:
    trace = a_trace()
    result = replay("memory", trace)
    assert result.prefix_hit_pages == result.oracle_hit_pages > 0
    assert result.lost_by_reason == {}
    assert all(pages > 0 for pages in result.hit_pages_by_tier.values())
    assert (result.wrong_pages, result.undrained_requests, result.extra_hit_pages) == (0, 0, 0)
    assert result.checked_pages == result.prefix_hit_pages
    assert result.sound


@pytest.mark.parametrize("write", ["write_through", "write_through_selective", "write_back"])
@pytest.mark.parametrize("prefetch", ["best_effort", "wait_complete", "timeout"])
@pytest.mark.parametrize("layout", ["layer_first", "page_first", "page_head"])
def test_every_policy_accounts_for_every_page(write: Any, prefetch: Any, layout: Any) -> None:
    result = replay(
        "memory",
        a_trace(30),
        write_policy=write,
        prefetch_policy=prefetch,
        layout=layout,
        drain=prefetch == "timeout",
    )
    assert result.wrong_pages == 0
    assert result.prefix_hit_pages + sum(result.lost_by_reason.values()) == result.oracle_hit_pages
    assert result.sound


@pytest.mark.parametrize("seed", range(4))
def test_faults_cost_pages_and_nothing_else(seed: int) -> None:
    faults = {"inner": "memory", "seed": seed, "flip": 0.1, "truncate": 0.1, "reorder": 0.1, "fail": 0.1}
    faults |= {"at": "set"} if seed % 2 else {"stale_exists": 0.2}
    result = replay({"backend": "fault", "options": faults}, a_trace(80, seed), drain_seconds=3.0)
    assert result.wrong_pages == 0
    assert result.prefix_hit_pages + sum(result.lost_by_reason.values()) == result.oracle_hit_pages
    assert result.lost_by_reason
    assert result.sound


def test_a_full_store_loses_pages_that_were_never_stored() -> None:
    result = replay({"backend": "memory", "options": {"max_bytes": 40 * 128}}, a_trace(80))
    assert result.lost_by_reason.get("never_stored", 0) > 0
    assert result.sound


def test_without_storage_l2_is_the_end() -> None:
    result = replay(None, a_trace())
    assert result.hit_pages_by_tier["storage"] == 0
    assert set(result.lost_by_reason) == {"no_storage"}
    assert result.sound


def test_ids_that_come_again_behind_others_lose_nothing() -> None:
    ids = [[1, 2], [2, 1], [3, 2, 1], [1, 2], [1, 1, 1], [1, 1, 1, 1], [2, 1, 5], [0, 2**32 - 1], [0, 2**32 - 1, 0]]
    result = replay("memory", [TraceRequest(0, len(blocks) * 8, 1, blocks) for blocks in ids])
    assert result.sound
    assert (result.lost_by_reason, result.extra_hit_pages) == ({}, 0)
    assert result.prefix_hit_pages == result.oracle_hit_pages == 10


def test_another_seed_makes_other_pages() -> None:
    trace = a_trace(10)
    settings = ReplaySettings(**SMALL, drain=True)
    cache = open_cache(settings, choose_backend("memory"), "test")
    first = Replay(cache, settings).run(trace)
    other = Replay(cache, ReplaySettings(**SMALL, drain=True, seed=1)).run(trace)
    again = Replay(cache, settings).run(trace)
    assert cache.shutdown(30.0)
    assert first.hit_pages_by_tier == other.hit_pages_by_tier
    assert again.extra_hit_pages > 0
    assert again.sound


def test_a_request_longer_than_l1_is_refused_before_anything_runs() -> None:
    with pytest.raises(ConfigError, match="longest request has 13 pages, L1 has 12"):
        replay("memory", [TraceRequest(0, 8, 1, [1]), TraceRequest(0, 104, 1, list(range(13)))])


@pytest.mark.parametrize("page_bytes", [0, 8, 100])
def test_page_bytes_that_cannot_be(page_bytes: int) -> None:
    with pytest.raises(ConfigError, match="multiple of 16"):
        replay_geometry(page_bytes, 8)


@pytest.mark.parametrize("page_tokens", [1, 2, 3, 512])
def test_every_size_of_page_is_refused_or_replayed(page_tokens: int) -> None:
    sizes = [2, 4, 8, 12, 24, 2 * page_tokens, 3 * page_tokens, 8 * page_tokens]
    replayed = set()
    for page_bytes in sizes:
        try:
            geometry = replay_geometry(page_bytes, page_tokens)
        except ConfigError:
            continue
        pool, content = NumpyDevicePool(geometry, 1), PageContent(page_bytes)
        content.write(pool, np.array([0]), ["ab" * 32])
        assert content.wrong(pool, np.array([0]), ["ab" * 32]) == 0
        replayed.add(page_bytes)
    fits = page_tokens != 3  # a page is a power of two tokens
    assert replayed == {size for size in sizes if fits and size % math.lcm(2 * page_tokens, 8) == 0}


@pytest.mark.parametrize(("l1", "l2"), [(10**9, 1), (1, 10**9), (10**20, 10**20)])
def test_pools_larger_than_memory_are_refused_with_the_numbers(l1: int, l2: int) -> None:
    settings = ReplaySettings(l1_pages=l1, l2_pages=l2, page_bytes=1 << 20)
    with pytest.raises(CapacityError, match=r"L1 and L2 together of .* does not fit: .* are available"):
        open_cache(settings, None, "test")


def test_a_changed_byte_or_another_page_is_wrong() -> None:
    geometry = replay_geometry(64, 8)
    pool, content = NumpyDevicePool(geometry, 4), PageContent(64)
    slots, hashes = np.array([2, 0]), ["ab" * 32, "cd" * 32]
    content.write(pool, slots, hashes)
    assert content.wrong(pool, slots, hashes) == 0
    assert content.wrong(pool, slots, hashes[::-1]) == 2
    page = bytearray(pool.read_page(0))
    page[63] ^= 1
    pool.write_page(0, bytes(page))
    assert content.wrong(pool, slots, hashes) == 1


def test_wrong_pages_make_a_replay_unsound() -> None:
    assert not ReplayResult(wrong_pages=1, ledger={"balanced": True}).sound
    assert not ReplayResult(ledger={"balanced": False}).sound
    assert not ReplayResult(oracle_hit_pages=1, ledger={"balanced": True}).sound
    assert ReplayResult(ledger={"balanced": True}).sound


# the command


@pytest.fixture
def command() -> Typer:
    app = Typer()
    replay_command.register(app)
    return app


def write_trace(path: Path, trace: list[TraceRequest], extra: str = "") -> Path:
    lines = [
        json.dumps({"timestamp": 0, "input_length": r.input_length, "output_length": 1, "hash_ids": r.hash_ids})
        for r in trace
    ]
    path.write_text("\n".join(lines) + "\n" + extra)
    return path


ARGUMENTS = ["--l1-pages", "12", "--l2-pages", "24", "--page-bytes", "64", "--page-tokens", "8", "--drain"]


def test_the_command_writes_its_report(command: Typer, tmp_path: Path) -> None:
    trace = a_trace(20)
    report = tmp_path / "r.json"
    arguments = [str(write_trace(tmp_path / "t.jsonl", trace)), "--backend", "memory", *ARGUMENTS]
    result = CliRunner().invoke(command, [*arguments, "--json", str(report)])
    assert result.exit_code == 0, result.output
    found = json.loads(report.read_bytes())
    assert found["requests"] == 20
    assert found["prefix_hit_pages"] == found["oracle_hit_pages"] == sum(found["hit_pages_by_tier"].values())
    assert (found["wrong_pages"], found["lost_by_reason"], found["ledger"]["balanced"]) == (0, {}, True)
    assert found["requests_per_second"] > 0
    assert found["bytes_moved"]["host_to_storage"] == found["counters"]["stored"] * 64
    assert "hits in storage" in result.output


def test_json_on_standard_output_stands_alone(command: Typer, tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.jsonl", a_trace(5))
    result = CliRunner().invoke(command, [str(trace), *ARGUMENTS, "--limit", "3", "--json", "-"])
    assert result.exit_code == 0
    assert json.loads(result.stdout)["requests"] == 3


def test_pages_stay_apart_unless_a_name_is_given(command: Typer, tmp_path: Path) -> None:
    trace = str(write_trace(tmp_path / "t.jsonl", a_trace(10)))
    report = tmp_path / "r.json"

    def extra(*more: str) -> int:
        store = ["--backend", "file", "-o", f"root={tmp_path / 'store'}"]
        result = CliRunner().invoke(command, [trace, *store, *ARGUMENTS, "--json", str(report), *more])
        assert result.exit_code == 0, result.output
        return int(json.loads(report.read_bytes())["extra_hit_pages"])

    assert extra() == 0
    assert extra() == 0
    assert extra("--name", "mine") == 0
    assert extra("--name", "mine") > 0
    assert extra("--name", "mine", "--clear") > 0
    assert extra("--name", "mine") == 0


def test_faults_through_the_command(command: Typer, tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.jsonl", a_trace(40))
    options = ["inner=file", f"root={tmp_path / 'store'}", "seed=7", "flip=0.05", "truncate=0.05", "fail=0.05"]
    chosen = [part for option in options for part in ("-o", option)]
    report = tmp_path / "r.json"
    result = CliRunner().invoke(
        command, [str(trace), "--backend", "fault", *chosen, *ARGUMENTS, "--json", str(report)]
    )
    assert result.exit_code == 0, result.output
    found = json.loads(report.read_bytes())
    assert found["wrong_pages"] == 0
    assert found["prefix_hit_pages"] + sum(found["lost_by_reason"].values()) == found["oracle_hit_pages"]


def test_a_bad_line_stops_it_before_anything_is_written(command: Typer, tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.jsonl", a_trace(3), "{broken")
    root = tmp_path / "store"
    result = CliRunner().invoke(command, [str(trace), "--backend", "file", "-o", f"root={root}", *ARGUMENTS])
    assert isinstance(result.exception, ConfigError)
    assert f"{trace}:4: not JSON" in str(result.exception)
    assert not root.exists()


def test_the_published_trace_from_its_beginning(tmp_path: Path) -> None:
    path = Path(__file__).parents[3] / "shared" / "data" / "conversation_trace.jsonl"
    if not path.exists():
        pytest.skip("the published trace is not here")
    settings = ReplaySettings(drain=True)
    cache = open_cache(settings, choose_backend("file", {"root": str(tmp_path / "store")}), "test")
    result = Replay(cache, settings).run(read_trace(path, 200))
    assert cache.shutdown(30.0)
    assert result.prefix_hit_pages == result.oracle_hit_pages > 0
    assert result.lost_by_reason == {}
    assert result.sound
