"""How operations are cut into calls and spread over workers."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hicache_core.storage.batches import SPLIT_BYTES, SPLIT_PAGE_BYTES, CutRule, PageBatch, slices
from hicache_core.storage.ledger import StorageLedger
from hicache_core.storage.staging import copy_page
from hicache_core.types import Outcome, PoolName

sizes_lists = st.lists(st.integers(0, 5000), max_size=400)


@given(sizes_lists, st.one_of(st.none(), st.integers(0, 20_000)), st.one_of(st.none(), st.integers(0, 20_000)))
def test_cuts_cover_everything_within_the_limits(sizes: list[int], most: int | None, staged: int | None) -> None:
    staged_sizes = [2 * size for size in sizes]
    ranges = CutRule(64, most, staged).cuts(sizes, staged_sizes)
    assert [i for lo, hi in ranges for i in range(lo, hi)] == list(range(len(sizes)))
    for lo, hi in ranges:
        assert 1 <= hi - lo <= 128
        if hi - lo > 1:
            assert most is None or sum(sizes[lo:hi]) + 64 * (hi - lo) <= most
            assert staged is None or sum(staged_sizes[lo:hi]) <= staged


def test_a_store_that_wants_no_bytes_at_all_gets_a_page_a_call() -> None:
    assert CutRule(64, 0).cuts([10, 0]) == [(0, 1), (1, 2)]


def test_calls_are_about_equally_large() -> None:
    assert CutRule(64, 16 << 20).cuts([256 << 10] * 64) == [(0, 32), (32, 64)]  # not 63 and one more
    assert CutRule(64, 20 << 20).cuts([1 << 20] * 64) == [(0, 16), (16, 32), (32, 48), (48, 64)]


@given(sizes_lists, st.integers(1, 4), st.integers(1, 8))
def test_slices_cover_everything(sizes: list[int], workers: int, parallelism: int) -> None:
    if sizes:
        parts = slices(sizes, workers, parallelism)
        assert [i for lo, hi in parts for i in range(lo, hi)] == list(range(len(sizes)))
        assert all(lo < hi for lo, hi in parts)
        assert len(parts) <= workers


def test_a_batch_is_spread_only_where_each_slice_has_4_mib() -> None:
    page = SPLIT_BYTES // 4
    assert slices([page] * 7, 2, 1) == [(0, 7)]
    assert slices([page] * 8, 2, 1) == [(0, 4), (4, 8)]
    assert slices([page] * 80, 2, 1) == [(0, 40), (40, 80)]
    assert slices([page] * 8, 1, 1) == [(0, 8)]
    assert slices([10] * 8, 4, 3) == [(0, 2), (2, 5), (5, 8)]


def test_a_batch_is_spread_only_where_its_pages_are_large_and_it_pays() -> None:
    assert slices([SPLIT_PAGE_BYTES] * 128, 2, 1) == [(0, 64), (64, 128)]
    assert slices([SPLIT_PAGE_BYTES - 1] * 128, 2, 1) == [(0, 128)]
    assert slices([1 << 20] * 128, 2, 1, spread=False) == [(0, 128)]
    assert slices([1 << 20] * 128, 2, 2, spread=False) == [(0, 64), (64, 128)]


def test_parts_of_a_batch_keep_their_pools_and_slots() -> None:
    pages = [[memoryview(bytes([i]))] for i in range(6)]
    pools = [(PoolName.KV, 4), (PoolName.SWA, 2)]
    batch = PageBatch(list("abcdef"), pages, [1] * 6, np.arange(6) * 10, pools, "owner")
    part = batch.cut(2, 5)
    assert list(part.keys) == ["c", "d", "e"]
    assert (part.pools, part.owner) == ([(PoolName.KV, 2), (PoolName.SWA, 1)], "owner")
    assert part.slots is not None
    assert part.slots.tolist() == [20, 30, 40]
    some = batch.take([0, 4, 5])
    assert (list(some.keys), some.pools) == (["a", "e", "f"], [(PoolName.KV, 1), (PoolName.SWA, 2)])
    assert batch.cut(0, 6) is batch


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=4), st.lists(st.integers(0, 300), max_size=4))
def test_pages_are_copied_across_different_cuts(data: bytes, one: list[int], two: list[int]) -> None:
    def pieces(memory: bytearray, at: list[int]) -> list[memoryview]:
        bounds = [0, *sorted(min(i, len(data)) for i in at), len(data)]
        return [memoryview(memory)[a:b] for a, b in itertools.pairwise(bounds)]

    target = bytearray(len(data))
    copy_page(pieces(target, one), pieces(bytearray(data), two))
    assert target == data


def test_large_buffers_are_copied_too() -> None:
    source = np.random.default_rng(0).integers(0, 256, 300_000, np.uint8)
    target = np.zeros_like(source)
    copy_page([memoryview(target)], [memoryview(source)])
    assert np.array_equal(source, target)


def test_the_ledger_counts_pages_by_outcome() -> None:
    ledger = StorageLedger()
    ledger.pages("get", [Outcome.HIT] * 3, 300)
    ledger.pages("get", [Outcome.HIT, Outcome.MISS, Outcome.CORRUPT], 100)
    ledger.pages("get", [])
    ledger.exception("batch_get", ValueError("x"))
    for _ in range(40):
        ledger.violation("batch_set", "too few")
    found = ledger.as_dict()
    assert found["pages"] == {"get": {"hit": 4, "miss": 1, "corrupt": 1}}
    assert found["bytes"] == {"get": 400}
    assert found["exceptions"] == {"batch_get": 1}
    assert found["violations"] == {"batch_set": 40}
    assert len(found["recent_errors"]) == 16
