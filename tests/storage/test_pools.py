"""v1 and v2 over registered pools, the core's defaults, and pools that are only lent."""

from __future__ import annotations

import logging
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_core.errors import ConfigError, MisuseError
from hicache_core.plugin.spec import hookimpl
from hicache_core.storage import PoolQuery, SessionSettings
from hicache_core.storage.defaults import contains_by_runs
from hicache_core.storage.prefixes import prefixes_over_pools
from hicache_core.types import (
    Capabilities,
    IoContext,
    Outcome,
    PoolHitPolicy,
    PoolName,
    PoolTransfer,
    PoolTransferResult,
)

ALL, TRAILING = PoolHitPolicy.ALL_PAGES, PoolHitPolicy.TRAILING_PAGES


def filled_pool(kit: Any, name: PoolName = PoolName.KV, count: int = 8, start: int = 0) -> Any:
    pool = kit.HostPool(name, count)
    for slot, data in enumerate(kit.data(count, start)):
        pool.fill(slot, data)
    return pool


def test_v1_moves_pages_of_the_registered_pool(kit: Any) -> None:
    session, _ = kit.memory()
    pool = filled_pool(kit)
    session.register_host_pool(pool)
    assert session.set_v1(kit.hashes(4), np.array([3, 2, 1, 0])) == [Outcome.STORED] * 4
    rooms = kit.rooms(4)
    assert session.get(kit.hashes(4), rooms) == [Outcome.HIT] * 4  # the generic path reads what v1 wrote
    assert [kit.bytes_of(room) for room in rooms] == [kit.data(4)[i] for i in (3, 2, 1, 0)]
    assert session.get_v1(kit.hashes(4), np.array([4, 5, 6, 7])) == [Outcome.HIT] * 4
    assert [pool.read(slot) for slot in (4, 5, 6, 7)] == [kit.data(4)[i] for i in (3, 2, 1, 0)]
    calls = session.ledger.as_dict()["calls"]
    assert calls == {"register_host_pool": 1, "batch_set_v1": 1, "batch_get": 1, "batch_get_v1": 1}


def test_native_v1_gets_slots_seals_and_pages(kit: Any) -> None:
    class Native(kit.Plain):  # type: ignore[name-defined, misc]
        @hookimpl
        def register_host_pool(self, view: Any) -> None:
            self.view = view

        @hookimpl
        def batch_set_v1(self, keys: Any, host_indices: Any, ctx: IoContext) -> list[Outcome]:
            assert host_indices.dtype == np.int64
            for key, slot, seal in zip(keys, host_indices, ctx.seals, strict=True):  # type: ignore[arg-type]
                self.pages[key] = bytes(seal) + b"".join(self.view.pages(np.array([slot]))[0])
            assert [b"".join(page) for page in ctx.pages] == [self.pages[key] for key in keys]  # type: ignore[arg-type, union-attr]
            return [Outcome.STORED] * len(keys)

        @hookimpl
        def batch_get_v1(self, keys: Any, host_indices: Any, ctx: IoContext) -> list[Outcome]:
            pages = [
                [seal, *self.view.pages(np.array([slot]))[0]]
                for seal, slot in zip(ctx.seals, host_indices, strict=True)  # type: ignore[arg-type]
            ]
            return [self.fill(key, page) for key, page in zip(keys, pages, strict=True)]

    session = kit.open(Native(), Capabilities(zero_copy_v1=True))
    pool = filled_pool(kit)
    session.register_host_pool(pool)
    assert session.set_v1(kit.hashes(3), np.array([0, 1, 2])) == [Outcome.STORED] * 3
    assert session.get_v1(kit.hashes(4), np.array([7, 6, 5, 4])) == [Outcome.HIT] * 3 + [Outcome.MISS]
    assert [pool.read(slot) for slot in (7, 6, 5)] == kit.data(3)


def test_pools_are_known_by_name(kit: Any) -> None:
    session, _ = kit.memory()
    with pytest.raises(MisuseError, match="kv is not registered"):
        session.get_v1(kit.hashes(1), np.array([0]))
    pool = filled_pool(kit)
    session.register_host_pool(pool)
    with pytest.raises(MisuseError, match="registered already"):
        session.register_host_pool(filled_pool(kit))
    with pytest.raises(MisuseError, match="2 hashes"):
        session.get_v1(kit.hashes(2), np.array([0]))
    with pytest.raises(MisuseError, match="no pool name"):
        session.get_v1(kit.hashes(1), np.array([0]), pool="swimming")
    session.unregister_host_pool(pool)
    with pytest.raises(MisuseError, match="not registered"):
        session.unregister_host_pool(pool)


def test_a_layout_that_the_store_cannot_take_is_refused(kit: Any) -> None:
    session = kit.open(kit.Plain(), Capabilities(layouts=("page_head",)))
    with pytest.raises(ConfigError, match=r"'page_first'.*page_head"):
        session.register_host_pool(filled_pool(kit))


def test_v2_moves_several_pools_and_skips_those_without_bytes(kit: Any) -> None:
    session, store = kit.memory()
    kv, swa = filled_pool(kit), filled_pool(kit, PoolName.SWA, 8, start=50)
    session.register_host_pool(kv)
    session.register_host_pool(swa)
    slots = np.arange(4)
    transfers = [
        PoolTransfer(PoolName.KV, kit.hashes(4), slots),
        PoolTransfer(PoolName.MAMBA, kit.hashes(4), None),
        PoolTransfer(PoolName.SWA, kit.hashes(4)[2:], slots[2:]),
    ]
    stored = session.set_v2(transfers)
    assert stored == {
        PoolName.KV: [Outcome.STORED] * 4,
        PoolName.MAMBA: [Outcome.EXISTS] * 4,
        PoolName.SWA: [Outcome.STORED] * 2,
    }
    assert len(store.pages) == 6
    back = [
        PoolTransfer(PoolName.KV, kit.hashes(4), slots + 4),
        PoolTransfer(PoolName.SWA, kit.hashes(4), slots + 4),
        PoolTransfer(PoolName.MAMBA, kit.hashes(4), None),
    ]
    assert session.get_v2(back) == {
        PoolName.KV: [Outcome.HIT] * 4,
        PoolName.SWA: [Outcome.MISS] * 2 + [Outcome.HIT] * 2,
        PoolName.MAMBA: [Outcome.HIT] * 4,
    }
    assert [kv.read(slot) for slot in (4, 5, 6, 7)] == kit.data(4)
    assert [swa.read(slot) for slot in (6, 7)] == kit.data(2, 52)
    assert session.get_v2([]) == {}
    with pytest.raises(MisuseError, match="more than one transfer"):
        session.get_v2([back[0], back[0]])


def test_large_v2_batches_are_cut_to_128_pages_over_all_pools(kit: Any) -> None:
    session, _ = kit.memory()
    for name in (PoolName.KV, PoolName.SWA):
        session.register_host_pool(filled_pool(kit, name, 100))
    transfers = [PoolTransfer(name, kit.hashes(100), np.arange(100)) for name in (PoolName.KV, PoolName.SWA)]
    session.set_v2(transfers)
    assert session.get_v2(transfers) == {name: [Outcome.HIT] * 100 for name in (PoolName.KV, PoolName.SWA)}
    assert session.ledger.as_dict()["calls"]["batch_get_v2"] == 2


def test_v2_finds_damage_in_its_pool(kit: Any, spoil: Any) -> None:
    session, store = kit.memory()
    for name in (PoolName.KV, PoolName.SWA):
        session.register_host_pool(filled_pool(kit, name))
    transfers = [PoolTransfer(name, kit.hashes(4), np.arange(4)) for name in (PoolName.KV, PoolName.SWA)]
    session.set_v2(transfers)
    spoil(store.pages, f"{session.namespace}/{kit.hashes(4)[1]}.swa.l0-2h0-2")
    outcomes = session.get_v2(transfers)
    assert outcomes[PoolName.KV] == [Outcome.HIT] * 4
    assert outcomes[PoolName.SWA] == [Outcome.HIT, Outcome.CORRUPT, Outcome.HIT, Outcome.HIT]
    queries = [PoolQuery(PoolName.SWA, kit.hashes(4), None, TRAILING, 2)]
    assert list(session.exists_v2(kit.hashes(4), queries).restorable) == [1, 4]  # 2 and 3 need the poisoned page
    assert list(session.exists_v2(kit.hashes(4), [PoolQuery(PoolName.SWA, kit.hashes(4))]).restorable) == [1]
    for slot, data in enumerate(kit.data(8)):
        session._parts.pools[PoolName.SWA].fill(slot, data)
    assert session.set_v2(transfers)[PoolName.SWA][1] is Outcome.STORED
    assert session.exists_v2(kit.hashes(4), queries).kv_hit_pages == 4


def test_a_native_v2_without_lengths_means_all_of_them(kit: Any) -> None:
    class Native(kit.Plain):  # type: ignore[name-defined, misc]
        @hookimpl
        def batch_exists_v2(self, keys: Any, pool_transfers: Any) -> PoolTransferResult:
            return PoolTransferResult(3)

    session = kit.open(Native())
    assert list(session.exists_v2(kit.hashes(5), []).restorable) == [1, 2, 3]


def test_block_groups_never_hit_and_are_logged_once(kit: Any, caplog: pytest.LogCaptureFixture) -> None:
    session, _ = kit.memory()
    session.set(kit.hashes(2), kit.sources(2))
    query = PoolQuery(PoolName.INDEXER, kit.hashes(2), None, PoolHitPolicy.BLOCK_GROUPS)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert session.exists_v2(kit.hashes(2), [query]).kv_hit_pages == 0
    assert caplog.text.count("block_groups") == 1


@pytest.mark.parametrize("count", [6, 300])
def test_prefixes_over_pools_of_a_store(kit: Any, count: int) -> None:
    """Windows may reach over the cut between two calls of 128 keys."""
    session, _ = kit.memory()
    hashes = kit.hashes(count)
    session.set(hashes, kit.sources(count))
    holes = {2, count - 3}
    present = [h for i, h in enumerate(hashes) if i not in holes]
    session.set(present, kit.sources(len(present)), pool="swa")
    found = session.exists_v2(hashes, [PoolQuery(PoolName.SWA, hashes, None, TRAILING, 2)])
    expected = [p for p in range(1, count + 1) if not holes & set(range(max(0, p - 2), p))]
    assert list(found.restorable) == expected
    assert found.kv_hit_pages == count
    with pytest.raises(MisuseError, match="pool swa"):
        session.exists_v2(hashes, [PoolQuery(PoolName.SWA, hashes[1:])])


pools = st.lists(
    st.tuples(st.sampled_from([ALL, TRAILING]), st.integers(0, 4), st.lists(st.booleans(), min_size=9, max_size=9)),
    max_size=3,
)


@given(kv=st.lists(st.booleans(), min_size=9, max_size=9), others=pools)
def test_restorable_prefixes_equal_their_definition(kv: list[bool], others: list[Any]) -> None:
    keys = [f"kv{i}" for i in range(9)]
    there = {key for key, flag in zip(keys, kv, strict=True) if flag}
    transfers = []
    for number, (policy, trailing, flags) in enumerate(others):
        own = [f"{number}-{i}" for i in range(9)]
        there |= {key for key, flag in zip(own, flags, strict=True) if flag}
        transfers.append(PoolTransfer(PoolName.SWA, own, None, policy, trailing))

    def run_of(some: Any) -> int:
        return next((i for i, key in enumerate(some) if key not in there), len(some))

    found = prefixes_over_pools(keys, transfers, run_of, lambda some: [key in there for key in some])

    def needs(transfer: PoolTransfer, length: int) -> set[str]:
        start = 0 if transfer.policy is ALL else max(0, length - transfer.trailing)
        return set(transfer.keys[start:length])

    expected = [
        length
        for length in range(1, 10)
        if set(keys[:length]) <= there and all(needs(transfer, length) <= there for transfer in transfers)
    ]
    assert list(found.restorable or ()) == expected
    assert found.kv_hit_pages == (expected[-1] if expected else 0)


@given(st.lists(st.booleans(), max_size=40))
def test_contains_by_runs_equals_membership(flags: list[bool]) -> None:
    keys = [str(i) for i in range(len(flags))]
    asked = []

    def run_of(some: Any) -> int:
        asked.append(len(some))
        return next((n for n, key in enumerate(some) if not flags[int(key)]), len(some))

    assert contains_by_runs(keys, run_of) == flags
    assert sum(asked) <= 10 * len(flags) + 1


def test_contains_walks_by_steps_of_one_after_an_empty_run_and_doubles_after_a_full_one() -> None:
    flags = [False, False, True, True, True, True, True, True, True]
    asked = []

    def run_of(some: Any) -> int:
        asked.append(len(some))
        return next((n for n, i in enumerate(some) if not flags[int(i)]), len(some))

    assert contains_by_runs([str(i) for i in range(9)], run_of) == flags
    assert asked == [9, 1, 1, 2, 4]


# -- pools lent by another engine


def test_a_lent_pool_is_written_under_the_claim_only(kit: Any) -> None:
    backend = kit.Stalling()
    session = kit.open(backend, settings=SessionSettings(lent_pools=True))
    pool = filled_pool(kit)
    session.register_host_pool(pool)
    session.set_v1(kit.hashes(2), np.array([0, 1]))
    assert session.get_v1(kit.hashes(3), np.array([4, 5, 6])) == [Outcome.HIT, Outcome.HIT, Outcome.MISS]
    assert [pool.read(4), pool.read(5)] == kit.data(2)
    assert pool.read(6) == kit.data(8)[6]  # a miss leaves it alone
    backend.held.add("batch_get")
    before = pool.memory.copy()
    handle = session.submit_get_v1(kit.hashes(2), np.array([6, 7]))
    assert backend.entered.acquire(timeout=kit.bound)
    handle.abandon()
    assert handle.result() == [Outcome.TIMEOUT] * 2
    backend.release.set()
    assert handle.returned.wait(kit.bound)
    assert np.array_equal(pool.memory, before)  # the store came back, the pool was not touched


def test_a_native_store_never_writes_into_a_lent_pool_that_can_be_abandoned(kit: Any) -> None:
    class Native(kit.Plain):  # type: ignore[name-defined, misc]
        @hookimpl
        def batch_get_v1(self) -> list[Outcome]:
            raise AssertionError("it would write straight into the pool")

    session = kit.open(Native(), settings=SessionSettings(lent_pools=True))
    session.register_host_pool(filled_pool(kit))
    assert session.get_v1(kit.hashes(1), np.array([0])) == [Outcome.MISS]


def test_zero_copy_into_a_lent_pool_is_waited_for_and_spares_later_calls(kit: Any) -> None:
    class Native(kit.Stalling):  # type: ignore[name-defined, misc]
        @hookimpl
        def batch_get_v1(self, keys: Any, ctx: IoContext) -> list[Outcome]:
            self.hold("batch_get_v1")
            return [self.fill(key, page) for key, page in zip(keys, ctx.pages, strict=True)]  # type: ignore[arg-type, misc]

    backend = Native("batch_get_v1")
    session = kit.open(backend, Capabilities(zero_copy_v1=True), settings=SessionSettings(lent_pools=True))
    pool = filled_pool(kit)
    session.register_host_pool(pool)
    session.set_v1(kit.hashes(1), np.array([3]))
    answers: list[Any] = []
    waiter = threading.Thread(
        target=lambda: answers.append(session.get_v1(kit.hashes(1), np.array([7]), timeout=0.01))
    )
    waiter.start()
    assert backend.entered.acquire(timeout=kit.bound)
    kit.until(lambda: session.status().breakers["read"].opened)
    assert waiter.is_alive()
    assert session.exists(kit.hashes(1)) == 0
    backend.release.set()
    waiter.join(kit.bound)
    assert answers == [[Outcome.HIT]]
    assert pool.read(7) == kit.data(4)[3]
