"""Every pool and layout of SGLang's through the door: the right bytes in the right places, one namespace per form."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from hicache_core.types import PoolName

MHA = ("layer_first", "page_first", "page_first_direct", "page_head")
MLA = ("layer_first", "page_first", "page_first_direct")
MAIN = [*(("mha", layout) for layout in MHA), *(("mla", layout) for layout in MLA)]
ASYMMETRIC = [("asymmetric", layout) for layout in ("page_first", "page_first_direct")]
BOUND = 60.0


@pytest.mark.parametrize(("kind", "layout"), [*MAIN, *ASYMMETRIC])
def test_v1_moves_the_very_bytes_of_a_page(
    pools: ModuleType, store: Callable[..., Any], kind: str, layout: str
) -> None:
    pool = getattr(pools, kind)(layout)
    door = pools.make_door(store(), pool, is_mla_model=kind == "mla")
    keys, slots, targets = pools.hashes(4), [3, 0, 5, 1], [8, 15, 9, 12]
    untouched = {slot: pools.page_bytes(pool, slot) for slot in range(pools.PAGES) if slot not in targets}
    assert door.batch_exists(keys) == 0
    assert door.batch_set_v1(keys, pools.tokens(slots)) == [True] * 4
    assert door.batch_exists([*keys, *pools.hashes(1, seed=2)]) == 4
    assert door.batch_get_v1(keys, pools.tokens(targets)) == [True] * 4
    assert [pools.page_bytes(pool, slot) for slot in targets] == [pools.page_bytes(pool, slot) for slot in slots]
    assert all(pools.page_bytes(pool, slot) == data for slot, data in untouched.items())
    door.close()


@pytest.mark.parametrize(("kind", "layout"), MAIN)
def test_both_paths_have_the_same_keys_and_bytes(
    pools: ModuleType, store: Callable[..., Any], kind: str, layout: str
) -> None:
    pool, hicache = getattr(pools, kind)(layout), store()
    fields = {"is_mla_model": kind == "mla"}
    straight = pools.make_door(hicache, pool, **fields)
    flat = pools.make_door(hicache, pool, v1=False, **fields)
    assert flat.session.namespace == straight.session.namespace
    keys = pools.hashes(2)
    assert straight.batch_set_v1(keys, pools.tokens([0, 1])) == [True] * 2
    pages = flat.batch_get(keys, [pool.get_dummy_flat_data_page() for _ in keys])
    assert all(page is not None for page in pages)
    for slot, page in enumerate(pages):
        assert bool((page == pool.get_data_page(slot * pools.PAGE)).all())
    more = pools.hashes(2, seed=9)
    assert flat.batch_set(more, [pool.get_data_page(slot * pools.PAGE) for slot in (2, 3)])
    assert straight.batch_get_v1(more, pools.tokens([6, 7])) == [True] * 2
    assert pools.same_page(pool, 2, 6)
    assert pools.same_page(pool, 3, 7)
    assert flat.get(keys[0], pool.get_dummy_flat_data_page()) is not None
    assert flat.set(pools.hashes(1, seed=4)[0], pool.get_data_page(0))
    assert flat.exists(keys[0])
    straight.close()
    flat.close()


def test_no_two_forms_of_a_page_share_a_namespace(pools: ModuleType, store: Callable[..., Any]) -> None:
    import torch

    hicache, names = store(model=""), []
    made = [(pools.mha(layout), {}) for layout in MHA]
    made += [(pools.mla(layout), {"is_mla_model": True}) for layout in MLA]
    made += [
        (pools.mha("page_first", layers=2), {}),
        (pools.mha("page_first", heads=4), {}),
        (pools.mha("page_first", dtype=torch.bfloat16), {}),
        (pools.mha("page_first"), {"pp_rank": 1, "pp_size": 2}),
        (pools.mha("page_first"), {"model_name": "served-model"}),
    ]
    for pool, fields in made:
        door = pools.make_door(hicache, pool, **fields)
        names.append(door.session.namespace)
        door.close()
    assert len(set(names)) == len(names)


def test_tensor_parallel_ranks_of_mha_have_keys_of_their_own(pools: ModuleType, store: Callable[..., Any]) -> None:
    hicache, pool, keys = store(), pools.mha("page_first"), pools.hashes(1)
    first = pools.make_door(hicache, pool, tp_rank=0, tp_size=2)
    second = pools.make_door(hicache, pool, tp_rank=1, tp_size=2)
    assert first.session.namespace == second.session.namespace
    assert first.batch_set_v1(keys, pools.tokens([0])) == [True]
    assert second.batch_exists(keys) == 0
    first.close()
    second.close()


def test_only_the_writing_rank_stores_mla_and_all_ranks_read_it(pools: ModuleType, store: Callable[..., Any]) -> None:
    hicache, pool, keys = store(), pools.mla("page_first"), pools.hashes(2)
    shape = {"tp_size": 2, "is_mla_model": True}
    second = pools.make_door(hicache, pool, tp_rank=1, **shape)
    first = pools.make_door(hicache, pool, tp_rank=0, **shape)
    assert second.batch_set_v1(keys, pools.tokens([0, 1])) == [True, True]
    assert second.session.ledger.outcomes("set") == {}
    assert first.batch_exists(keys) == 0
    assert first.batch_set_v1(keys, pools.tokens([0, 1])) == [True, True]
    assert second.batch_get_v1(keys, pools.tokens([4, 5])) == [True, True]
    assert pools.same_page(pool, 1, 5)
    first.close()
    second.close()


# -- pools beside the main one


@pytest.mark.parametrize("layout", ["layer_first", "page_first"])
def test_side_pools_by_v2(pools: ModuleType, store: Callable[..., Any], layout: str) -> None:
    main, index, state = pools.mla(layout), pools.indexer(layout), pools.mamba("page_first")
    door = pools.make_door(store(), main, is_mla_model=True)
    door.register_mem_host_pool_v2(index, pools.pool_name("indexer"))
    door.register_mem_host_pool_v2(state, pools.pool_name("mamba"))
    keys = pools.hashes(3)
    wanted = [pools.transfer("indexer", keys, [0, 1, 2]), pools.transfer("mamba", keys[2:], [7])]
    stored = door.batch_set_v2(wanted)
    assert stored == {PoolName.INDEXER: [True] * 3, PoolName.MAMBA: [True]}
    assert door.batch_set_v1(keys, pools.tokens([0, 1, 2])) == [True] * 3
    policy = type(wanted[0].hit_policy)
    asked = [
        pools.transfer("indexer", None),
        pools.transfer("mamba", ["x"], hit_policy=policy.TRAILING_PAGES),
    ]
    found = door.batch_exists_v2(keys, asked)
    assert type(found).__module__.startswith("sglang.")
    assert found.kv_hit_pages == 3
    assert getattr(found, "restorable_prefix_pages", [3]) == [3]
    assert found.extra_pool_hit_pages == {PoolName.INDEXER: 3, PoolName.MAMBA: 3}
    before_index, before_state = index.get_data_page(4), state.get_data_page(7)
    got = door.batch_get_v2([pools.transfer("indexer", keys, [5, 6, 8]), pools.transfer("mamba", keys[2:], [9])])
    assert got == {PoolName.INDEXER: [True] * 3, PoolName.MAMBA: [True]}
    assert bool((index.get_data_page(5 * pools.PAGE) == index.get_data_page(0)).all())
    assert bool((state.get_data_page(9) == before_state).all())
    assert before_index is not None
    assert door.batch_exists_v2(keys, [pools.transfer("swa", None)]).kv_hit_pages == 0  # was never registered
    door.close()


def test_state_that_differs_from_rank_to_rank_is_never_shared(pools: ModuleType, store: Callable[..., Any]) -> None:
    hicache, keys, doors = store(), pools.hashes(1), []
    for rank in (0, 1):
        door = pools.make_door(hicache, pools.mla("page_first"), is_mla_model=True, tp_rank=rank, tp_size=2)
        door.register_mem_host_pool_v2(pools.mamba(), pools.pool_name("mamba"))
        door.register_mem_host_pool_v2(pools.indexer("page_first"), pools.pool_name("indexer"))
        if pools.has_pool_name("draft"):
            door.register_mem_host_pool_v2(pools.mha("page_first"), pools.pool_name("draft"))
        doors.append(door)
    first, second = doors
    names = [str(name) for name in first.registered_pools if str(name) != "kv"]
    first.batch_set_v2([pools.transfer(name, keys, [0]) for name in names])
    found = second.batch_get_v2([pools.transfer(name, keys, [1]) for name in names])
    assert found == {name: [name == "indexer"] for name in names}
    second.batch_set_v2([pools.transfer("mamba", keys, [0])])
    assert second.batch_get_v2([pools.transfer("mamba", keys, [1])]) == {PoolName.MAMBA: [True]}
    for door in doors:
        door.close()


def test_a_side_pool_of_another_form_misses(pools: ModuleType, store: Callable[..., Any]) -> None:
    hicache, keys = store(), pools.hashes(1)
    for layout in ("layer_first", "page_first"):
        door = pools.make_door(hicache, pools.mla("page_first"), is_mla_model=True)
        door.register_mem_host_pool_v2(pools.indexer(layout), pools.pool_name("indexer"))
        assert door.batch_get_v2([pools.transfer("indexer", keys, [1])]) == {PoolName.INDEXER: [False]}
        assert door.batch_set_v2([pools.transfer("indexer", keys, [0])]) == {PoolName.INDEXER: [True]}
        door.close()


def test_an_anchor_without_bytes_gates_nothing(pools: ModuleType, store: Callable[..., Any]) -> None:
    door = pools.make_door(store(), pools.logical(), is_mla_model=True)
    index = pools.indexer("page_first")
    door.register_mem_host_pool_v2(index, pools.pool_name("indexer"))
    keys = pools.hashes(4)
    assert door.batch_set_v1(keys, pools.tokens([0, 1, 2, 3])) == [True] * 4
    assert door.batch_get_v1(keys, pools.tokens([0, 1, 2, 3])) == [True] * 4
    assert door.batch_exists(keys) == 4
    door.batch_set_v2([pools.transfer("indexer", keys[:2], [0, 1])])
    assert door.batch_exists_v2(keys, [pools.transfer("indexer", None)]).kv_hit_pages == 2
    policy = type(pools.transfer("indexer", None).hit_policy)
    last = pools.transfer("indexer", ["x"], hit_policy=policy.TRAILING_PAGES)
    assert door.batch_exists_v2(keys, [last]).kv_hit_pages == 2
    door.close()


def test_block_groups_are_not_supported_and_say_so_once(
    pools: ModuleType, store: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    door = pools.make_door(store(), pools.mla("page_first"), is_mla_model=True)
    policy = type(pools.transfer("indexer", None).hit_policy)
    if not hasattr(policy, "BLOCK_GROUPS"):
        pytest.skip("this version has no BLOCK_GROUPS")
    door.register_mem_host_pool_v2(pools.indexer("page_first"), pools.pool_name("indexer"))
    keys = pools.hashes(2)
    door.batch_set_v1(keys, pools.tokens([0, 1]))
    for _ in range(3):
        asked = [pools.transfer("indexer", keys, hit_policy=policy.BLOCK_GROUPS)]
        assert door.batch_exists_v2(keys, asked).kv_hit_pages == 0
    assert sum("block_groups" in record.getMessage() for record in caplog.records) == 1
    door.close()


# -- what a caller may get wrong, and how much it may ask


def test_wrong_indices_store_and_fill_nothing(
    pools: ModuleType, store: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    pool = pools.mha("page_first")
    door = pools.make_door(store(), pool)
    keys = pools.hashes(2)
    good = pools.tokens([2, 3])
    gap = good.clone()
    gap[5] += 1
    before = pool.kv_buffer.clone()
    door.batch_set_v1(keys, good)
    for wrong in (good + 1, gap, good[:-1], good + 4000, good - 4000):
        assert door.batch_set_v1(pools.hashes(2, seed=5), wrong) == [False, False]
        assert door.batch_get_v1(keys, wrong) == [False, False]
    assert door.batch_exists(pools.hashes(2, seed=5)) == 0
    assert bool((pool.kv_buffer == before).all())
    assert door.batch_get(keys, [pool.get_dummy_flat_data_page()]) == [None, None]
    assert door.batch_get(keys) == [None, None]
    assert not door.batch_set(keys, None)
    assert any("boundary" in record.getMessage() for record in caplog.records)
    door.close()


def test_nothing_raises_after_close(pools: ModuleType, store: Callable[..., Any]) -> None:
    pool = pools.mha("page_first")
    door = pools.make_door(store(), pool)
    door.close()
    door.close()
    keys, where = pools.hashes(1), pools.tokens([0])
    assert (door.batch_exists(keys), door.exists(keys[0])) == (0, False)
    assert (door.batch_get_v1(keys, where), door.batch_set_v1(keys, where)) == ([False], [False])
    assert door.batch_exists_v2(keys, [pools.transfer("mamba", None)]).kv_hit_pages == 0
    assert door.batch_get_v2([pools.transfer("kv", keys, [0])]) == {PoolName.KV: [False]}
    assert door.clear() is False
    door.register_mem_pool_host(pool)  # a new attachment
    assert door.batch_set_v1(keys, where) == [True]
    door.close()


def test_a_key_that_would_leave_the_root_is_one_legal_key(pools: ModuleType, store: Callable[..., Any]) -> None:
    door = pools.make_door(store(), pools.mha("page_first"))
    keys = ["../../escape", "A" * 64, "a" * 63, "", "key/with/slash", "x" * 500]
    assert door.batch_set_v1(keys, pools.tokens(range(6))) == [True] * 6
    assert door.batch_get_v1(keys, pools.tokens(range(6, 12))) == [True] * 6
    assert all(pools.same_page(door.mem_pool_host, slot, slot + 6) for slot in range(6))
    assert door.batch_exists(["a" * 64]) == 0
    door.close()


def test_a_prompt_of_250_thousand_tokens_is_one_question(pools: ModuleType, store: Callable[..., Any]) -> None:
    door = pools.make_door(store(backend="memory", options={}, timeout=120.0), pools.mha("page_first"))
    keys = pools.hashes(250_000 // pools.PAGE)
    stored = 9_000
    for start in range(0, stored, 16):
        assert all(door.batch_set_v1(keys[start : start + 8], pools.tokens(range(8))))
        assert all(door.batch_set_v1(keys[start + 8 : start + 16], pools.tokens(range(8))))
    assert door.batch_exists(keys) == -(-stored // 16) * 16
    assert door.session.ledger.outcomes("get") == {}
    door.close()


def test_three_threads_at_once(pools: ModuleType, store: Callable[..., Any]) -> None:
    pool = pools.mha("page_first")
    door = pools.make_door(store(), pool)
    stored = pools.hashes(4, seed=0)
    assert all(door.batch_set_v1(stored, pools.tokens([0, 1, 2, 3])))
    rounds, wrong = 60, []

    def repeat(work: Callable[[int], bool]) -> None:
        wrong.extend(turn for turn in range(rounds) if not work(turn))

    def backup(turn: int) -> bool:
        return all(door.batch_set_v1(pools.hashes(4, seed=10 + turn), pools.tokens([0, 1, 2, 3])))

    def read(turn: int) -> bool:
        return all(door.batch_get_v1(stored, pools.tokens([8, 9, 10, 11]))) and pools.same_page(pool, 3, 11)

    def query(turn: int) -> bool:
        return bool(door.batch_exists(stored) == 4) and door.get_stats() is not None

    threads = [threading.Thread(target=repeat, args=(work,)) for work in (backup, read, query)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(BOUND)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []
    assert door.batch_exists(pools.hashes(4, seed=10 + rounds - 1)) == 4
    door.close()


def test_a_pool_that_moves_its_pages_is_asked_every_time(pools: ModuleType, store: Callable[..., Any]) -> None:
    pool = pools.mha("page_first")
    pool.shared_allocation_domain = object()
    moved = np.arange(pools.PAGES)[::-1].copy()
    real = pool.get_page_buffer_meta
    pool.get_page_buffer_meta = lambda tokens: real(pools.tokens(moved[tokens[:: pools.PAGE].numpy() // pools.PAGE]))
    door = pools.make_door(store(), pool)
    keys = pools.hashes(1)
    assert door.batch_set_v1(keys, pools.tokens([0])) == [True]
    moved[:] = np.roll(moved, 1)
    assert door.batch_get_v1(keys, pools.tokens([5])) == [True]
    where = pools.tokens([int(moved[5])])
    assert bool((pool.kv_buffer[:, where] == pool.kv_buffer[:, pools.tokens([pools.PAGES - 1])]).all())
    door.close()
