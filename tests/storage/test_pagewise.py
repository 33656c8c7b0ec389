"""Hooks marked `pagewise`: pages are sealed and judged at the store's word, which is believed in nothing else."""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from hicache_core.clock import ManualClock
from hicache_core.errors import MisuseError
from hicache_core.plugin.spec import hookimpl, pagewise
from hicache_core.seal import Sealer
from hicache_core.storage import SessionSettings
from hicache_core.types import Capabilities, IoContext, Outcome, Page, PoolName, PoolTransfer

HIT, STORED = Outcome.HIT, Outcome.STORED


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How many pages were stamped and judged one by one, and how many batches were."""
    counts = dict.fromkeys(("stamp_page", "check_page", "stamp_batch", "check_batch"), 0)
    for name in counts:
        real = getattr(Sealer, name)

        def spy(self: Sealer, *args: Any, real: Any = real, name: str = name) -> Any:
            counts[name] += 1
            return real(self, *args)

        monkeypatch.setattr(Sealer, name, spy)
    return counts


@pytest.mark.parametrize("settings", [SessionSettings(), SessionSettings(mac_key=b"k" * 32)], ids=["xxh3", "mac"])
@pytest.mark.parametrize("alignment", [1, 512])
def test_pages_come_back_and_are_hashed_once(
    kit: Any, counted: dict[str, int], settings: SessionSettings, alignment: int
) -> None:
    session = kit.open(kit.Paged(), Capabilities(alignment=alignment), settings=settings)
    assert session.set(kit.hashes(5), kit.sources(5)) == [STORED] * 5
    rooms = kit.rooms(5)
    assert session.get(kit.hashes(5), rooms) == [HIT] * 5
    assert [kit.bytes_of(room) for room in rooms] == kit.data(5)
    assert counted == {"stamp_page": 5, "check_page": 5, "stamp_batch": 0, "check_batch": 0}


def test_a_page_that_is_there_is_not_hashed_to_be_stored_again(kit: Any, counted: dict[str, int]) -> None:
    session = kit.open(kit.Paged())
    session.set(kit.hashes(3), kit.sources(3))
    assert session.set(kit.hashes(5), kit.sources(5)) == [Outcome.EXISTS] * 3 + [STORED] * 2
    assert counted["stamp_page"] == 5


def test_a_page_stored_unsealed_is_a_violation_and_no_hit(kit: Any) -> None:
    store = kit.Paged()
    session = kit.open(store)
    hashes = kit.hashes(3)
    keys = session.identity.key_schema().physical(hashes)
    store.silent = {keys[1]}
    assert session.set(hashes, kit.sources(3)) == [Outcome.UNAVAILABLE] * 3
    assert "page 1 without calling ctx.seal_page" in str(session.status().recent_errors)
    assert session.get(hashes, kit.rooms(3))[1] is not HIT


def test_a_page_that_was_never_verified_is_judged_in_the_end(kit: Any) -> None:
    store = kit.Paged()
    session = kit.open(store)
    hashes = kit.hashes(3)
    session.set(hashes, kit.sources(3))
    keys = session.identity.key_schema().physical(hashes)
    store.silent = set(keys)
    store.pages[keys[2]] = store.pages[keys[2]][:-1] + b"?"
    assert session.get(hashes, kit.rooms(3)) == [HIT, HIT, Outcome.CORRUPT]


def test_a_damaged_page_is_read_again_and_poisoned(kit: Any) -> None:
    store = kit.Paged()
    session = kit.open(store)
    hashes = kit.hashes(3)
    session.set(hashes, kit.sources(3))
    keys = session.identity.key_schema().physical(hashes)
    store.pages[keys[1]] = store.pages[keys[1]][:-1] + b"?"
    assert session.get(hashes, kit.rooms(3)) == [HIT, Outcome.CORRUPT, HIT]
    assert session.ledger.count("retries") == session.ledger.count("poisoned") == 1
    assert session.exists(hashes) == 1


def test_the_mark_does_not_pass_to_a_hook_around_it(kit: Any, counted: dict[str, int]) -> None:
    class Spoiling(kit.Paged):  # type: ignore[misc]
        @hookimpl
        def batch_get(self, keys: Sequence[str], pages: Sequence[Page], ctx: IoContext) -> Any:
            outcomes = super().batch_get(keys, pages, ctx)
            for page in pages:
                page[-1][0] ^= 1
            return outcomes

    session = kit.open(Spoiling())
    session.set(kit.hashes(3), kit.sources(3))
    assert session.get(kit.hashes(3), kit.rooms(3)) == [Outcome.CORRUPT] * 3
    assert counted["check_batch"] == 2


def test_a_wrapper_that_copies_the_names_of_its_hook_has_no_mark(kit: Any) -> None:
    def spoiling(hook: Any) -> Any:
        @functools.wraps(hook)
        def around(self: Any, keys: Sequence[str], pages: Sequence[Page], ctx: IoContext) -> Any:
            outcomes = hook(self, keys, pages, ctx)
            for page in pages:
                page[-1][0] ^= 1
            return outcomes

        return around

    class Spoiling(kit.Paged):  # type: ignore[misc]
        batch_get = spoiling(kit.Paged.batch_get)

    session = kit.open(Spoiling())
    session.set(kit.hashes(3), kit.sources(3))
    assert session.get(kit.hashes(3), kit.rooms(3)) == [Outcome.CORRUPT] * 3


def test_a_v1_hook_is_not_believed_alone(kit: Any, counted: dict[str, int]) -> None:
    class HalfMarked(kit.Paged):  # type: ignore[misc]
        @hookimpl
        def batch_get(self, keys: Sequence[str], pages: Sequence[Page], ctx: IoContext) -> Any:
            return super().batch_get(keys, pages, ctx)

        @hookimpl
        @pagewise
        def batch_get_v1(self, keys: Sequence[str], ctx: IoContext) -> Any:
            return self.batch_get(keys, ctx.pages, ctx)

    session = kit.open(HalfMarked())
    pool = kit.HostPool(PoolName.KV, 3)
    session.register_host_pool(pool)
    for slot, data in enumerate(kit.data(3)):
        pool.fill(slot, data)
    session.set_v1(kit.hashes(3), np.arange(3))
    assert session.get_v1(kit.hashes(3), np.arange(3)) == [HIT] * 3
    assert (counted["check_batch"], counted["stamp_page"]) == (1, 3)


def test_pages_of_a_pool_are_told_by_their_index_in_the_call(kit: Any, counted: dict[str, int]) -> None:
    session = kit.open(kit.Paged())
    pool = kit.HostPool(PoolName.KV, 6)
    session.register_host_pool(pool)
    for slot, data in zip((4, 0, 2), kit.data(3), strict=True):
        pool.fill(slot, data)
    assert session.set_v1(kit.hashes(3), np.array([4, 0, 2])) == [STORED] * 3
    assert session.get_v1(kit.hashes(3), np.array([1, 5, 3])) == [HIT] * 3
    assert [pool.read(slot) for slot in (1, 5, 3)] == kit.data(3)
    assert (counted["stamp_page"], counted["check_page"]) == (3, 3)


def test_pools_of_a_v2_call_are_hashed_as_a_batch(kit: Any, counted: dict[str, int]) -> None:
    session = kit.open(kit.Paged())
    pool = kit.HostPool(PoolName.KV, 3)
    session.register_host_pool(pool)
    transfer = PoolTransfer(PoolName.KV, kit.hashes(3), np.arange(3))
    assert session.set_v2([transfer]) == {PoolName.KV: [STORED] * 3}
    assert session.get_v2([transfer]) == {PoolName.KV: [HIT] * 3}
    assert (counted["stamp_batch"], counted["check_batch"]) == (1, 1)


def test_the_pages_after_a_probe_are_counted_from_their_own_call(kit: Any) -> None:
    store = kit.Paged()
    clock = ManualClock()
    session = kit.open(store, clock=clock)
    hashes = kit.hashes(4)
    session.set(hashes, kit.sources(4))
    session.breakers["read"].force_open(1.0, "a test")
    clock.advance(2.0)
    rooms = kit.rooms(4)
    assert session.get(hashes, rooms) == [HIT] * 4
    assert [kit.bytes_of(room) for room in rooms] == kit.data(4)
    assert [len(keys) for hook, keys in store.calls if hook == "batch_get"] == [1, 3]


@pytest.mark.parametrize("beside", [2, -1])
def test_an_index_beside_the_batch_is_the_stores_error(kit: Any, beside: int) -> None:
    class Beside(kit.Paged):  # type: ignore[misc]
        @hookimpl
        @pagewise
        def batch_get(self, keys: Sequence[str], pages: Sequence[Page], ctx: IoContext) -> list[Outcome]:
            ctx.verify_page(beside)
            return [HIT] * len(keys)

    session = kit.open(Beside())
    session.set(kit.hashes(2), kit.sources(2))
    assert session.get(kit.hashes(2), kit.rooms(2)) == [Outcome.UNAVAILABLE] * 2


@pytest.mark.parametrize("moment", ["before the page is hashed", "while it is hashed"])
def test_what_lies_in_memory_that_was_given_up_is_not_sealed_as_the_page(
    kit: Any, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pages of a set that timed out may be those of another sequence by the time the store comes to them."""
    inside, reused = threading.Event(), threading.Event()

    def wait_inside() -> None:
        inside.set()
        assert reused.wait(10)

    class Slow(kit.Paged):  # type: ignore[misc]
        @hookimpl
        @pagewise
        def batch_set(self, keys: Sequence[str], pages: Sequence[Page], ctx: IoContext) -> Any:
            if moment.startswith("before"):
                wait_inside()
            return super().batch_set(keys, pages, ctx)

    real = Sealer.stamp_page

    def slow_stamp(self: Sealer, *args: Any) -> None:
        if moment.startswith("while"):
            wait_inside()
        real(self, *args)

    monkeypatch.setattr(Sealer, "stamp_page", slow_stamp)
    store = Slow()
    session = kit.open(store)
    hashes, pages = kit.hashes(3), kit.rooms(3)
    handle = session.submit_set(hashes, pages)
    assert inside.wait(10)
    handle.abandon()
    for page in pages:
        for buffer in page:
            buffer[:] = bytes([9]) * len(buffer)
    reused.set()
    assert handle.returned.wait(10)
    assert handle.result() == [Outcome.TIMEOUT] * 3
    assert store.pages == {}
    assert session.get(hashes, kit.rooms(3)) == [Outcome.MISS] * 3
    assert session.status().recent_errors == []


def test_a_thread_that_seals_after_its_call_harms_no_other_call(kit: Any) -> None:
    """The memory of the seals goes from call to call."""
    left: list[Any] = []

    class Late(kit.Paged):  # type: ignore[misc]
        @hookimpl
        @pagewise
        def batch_set(self, keys: Sequence[str], pages: Sequence[Page], ctx: IoContext) -> list[Outcome]:
            ctx.seal_page(0)
            for seal_page in left:
                with pytest.raises(MisuseError, match="after its hook had returned"):
                    seal_page(0)
            left.append(ctx.seal_page)
            self.pages[keys[0]] = b"".join(pages[0])
            return [STORED]

    session = kit.open(Late())
    hashes, sources = kit.hashes(8), kit.sources(8)
    for one, page in zip(hashes, sources, strict=True):
        assert session.set([one], [page]) == [STORED]
    assert session.get(hashes, kit.rooms(8)) == [HIT] * 8
