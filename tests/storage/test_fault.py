"""The backend `fault`: seeded, replayable, and honest about what it leaves of the inner store."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from hicache_core.errors import HiCacheError, OptionError, UnknownNameError
from hicache_core.plugin.options import describe_options
from hicache_core.plugin.select import choose_backend
from hicache_core.plugin.spec import hookimpl
from hicache_core.storage import open_session
from hicache_core.storage.binding import HookBinding
from hicache_core.storage.fault import Dice, FaultBackend, InjectedFault
from hicache_core.storage.fault_options import FaultOptions, without_broken
from hicache_core.storage.memory import CAPABILITIES, MemoryBackend, MemoryStore
from hicache_core.types import Capabilities, IoContext, Outcome

KEYS = [f"ns/{i}" for i in range(200)]


def wrapped(inner: Any = None, **options: Any) -> FaultBackend:
    inner = inner or MemoryBackend(MemoryStore(), None)
    chosen = FaultOptions(inner="memory", **options)
    return FaultBackend(HookBinding(inner), chosen, without_broken(CAPABILITIES, chosen))


def pages(count: int = 200) -> list[list[memoryview]]:
    return [[memoryview(bytes([i % 256] * 40)), memoryview(bytes([i // 2] * 24))] for i in range(count)]


def rooms(count: int = 200) -> list[list[memoryview]]:
    return [[memoryview(bytearray(40)), memoryview(bytearray(24))] for _ in range(count)]


def contents(room: list[list[memoryview]]) -> list[bytes]:
    return [b"".join(page) for page in room]


def read(backend: FaultBackend, count: int = 200) -> list[bytes]:
    room = rooms(count)
    assert backend.batch_get(KEYS[:count], room, IoContext()) == [Outcome.HIT] * count
    return contents(room)


def test_without_faults_it_is_the_inner_store() -> None:
    backend = wrapped()
    assert backend.batch_set(KEYS, pages(), IoContext()) == [Outcome.STORED] * 200
    assert read(backend) == contents(pages())
    assert backend.batch_exists([*KEYS[:3], "ns/none"], IoContext()) == 3
    assert backend.batch_contains(["ns/none", KEYS[0]], IoContext()) == [False, True]
    assert backend.delete(KEYS[:1], IoContext()) == [Outcome.HIT]
    assert len(backend.scan("ns", None)[0]) == 199
    assert backend.clear("ns") == 199
    assert backend.stats().pages == 0
    assert backend.capabilities == CAPABILITIES


@pytest.mark.parametrize("fault", ["truncate", "flip", "reorder"])
def test_page_faults_strike_about_as_often_as_said_and_lie(fault: str) -> None:
    backend = wrapped(seed=3, **{fault: 0.2})
    backend.batch_set(KEYS, pages(), IoContext())
    wrong = sum(a != b for a, b in zip(read(backend), contents(pages()), strict=True))
    assert 10 < wrong < 120
    assert not backend.capabilities.durable


@pytest.mark.parametrize("fault", ["truncate", "flip", "reorder"])
def test_the_same_seed_gives_the_same_faults(fault: str) -> None:
    seen = []
    for seed in (5, 5, 6):
        backend = wrapped(seed=seed, **{fault: 0.1})
        backend.batch_set(KEYS, pages(), IoContext())
        seen.append([read(backend), read(backend)])
    assert seen[0] == seen[1]
    assert seen[0] != seen[2]
    assert seen[0][0] != seen[0][1]  # a second read is drawn anew


def test_faults_of_one_key_do_not_depend_on_the_others() -> None:
    one, two = wrapped(seed=5, flip=0.3), wrapped(seed=5, flip=0.3)
    for backend in (one, two):
        backend.batch_set(KEYS, pages(), IoContext())
    alone = []
    for i in reversed(range(200)):
        room = rooms(1)
        two.batch_get([KEYS[i]], room, IoContext())
        alone.append(contents(room)[0])
    assert read(one) == alone[::-1]


@pytest.mark.parametrize("fault", ["truncate", "flip", "reorder"])
def test_damage_can_be_stored(fault: str) -> None:
    store = MemoryStore()
    backend = wrapped(MemoryBackend(store, None), seed=3, at="set", **{fault: 0.2})
    originals = pages()
    kept = contents(originals)
    backend.batch_set(KEYS, originals, IoContext())
    assert contents(originals) == kept  # the live page is not touched
    stored = [store.pages[key][0] for key in KEYS]
    wrong = sum(a != b for a, b in zip(stored, kept, strict=True))
    assert 10 < wrong < 120
    assert any(len(data) != 64 for data in stored) == (fault == "truncate")
    assert not backend.capabilities.zero_copy_v1


def test_stale_exists_and_contains() -> None:
    backend = wrapped(seed=1, stale_exists=0.5)
    backend.batch_set(KEYS[:10], pages(10), IoContext())
    runs = [backend.batch_exists(KEYS[5:], IoContext()) for _ in range(50)]
    assert min(runs) == 5
    assert max(runs) > 5
    flags = backend.batch_contains(KEYS, IoContext())
    assert flags[:10] == [True] * 10
    assert 50 < sum(flags[10:]) < 140
    assert backend.batch_exists_v2(KEYS, [], IoContext()) is None
    always = wrapped(stale_exists=1.0)
    assert always.batch_exists(KEYS, IoContext()) == 200


def test_calls_fail() -> None:
    backend = wrapped(seed=1, fail=0.3)
    failed = 0
    for key in KEYS:
        try:
            backend.batch_exists([key], IoContext())
        except InjectedFault:
            failed += 1
    assert 30 < failed < 90
    backend = wrapped(seed=9, fail=1.0)
    with pytest.raises(InjectedFault, match=r"batch_exists of 1 keys was made to fail \(seed 9\)"):
        backend.batch_exists(["ns/a"], IoContext())
    for call in (
        lambda: backend.batch_set(KEYS, pages(), IoContext()),
        lambda: backend.batch_get(KEYS, rooms(), IoContext()),
        lambda: backend.delete(KEYS, IoContext()),
        lambda: backend.clear("ns"),
        lambda: backend.scan("ns", None),
    ):
        with pytest.raises(InjectedFault):
            call()


def test_a_stalled_call_ends_at_close(kit: Any) -> None:
    session = open_session("fault", identity=kit.identity, options={"inner": "memory", "stall": 1.0})
    handle = session.submit_exists(kit.hashes(1), timeout=0.02)
    assert handle.result() == 0
    report = session.close(kit.bound)
    assert report.clean
    assert handle.returned.wait(kit.bound)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("hicache-fault")]


def test_a_stalled_call_goes_on_after_its_time() -> None:
    backend = wrapped(stall=1.0, stall_seconds=0.0, delay=1.0, delay_seconds=0.0)
    assert backend.batch_exists(KEYS, IoContext()) == 0


def test_native_calls_of_the_inner_store_pass_through_and_are_spoilt() -> None:
    class Native(MemoryBackend):
        @hookimpl
        def batch_get_v1(self, keys: Any, ctx: IoContext) -> list[Outcome]:
            return self.batch_get(keys, ctx.pages, ctx)  # type: ignore[arg-type]

        @hookimpl
        def batch_get_v2(self, transfers: Any, ctx: IoContext) -> Any:
            assert isinstance(ctx.pages, dict)
            return {t.name: self.batch_get(t.keys, ctx.pages[t.name], ctx) for t in transfers}

        @hookimpl
        def batch_set_v1(self, keys: Any, ctx: IoContext) -> list[Outcome]:
            return self.batch_set(keys, ctx.pages, ctx)  # type: ignore[arg-type]

        @hookimpl
        def batch_exists_v2(self, keys: Any) -> str:
            return "native"

        @hookimpl
        def allocate_host_memory(self, nbytes: int) -> bytearray:
            return bytearray(nbytes)

    import numpy as np

    from hicache_core.types import PoolName, PoolTransfer

    slots = np.arange(200)
    backend = wrapped(Native(MemoryStore(), None), seed=2, flip=0.3)
    assert backend.batch_set_v1(KEYS, slots, IoContext(pages=pages())) == [Outcome.STORED] * 200
    room = rooms()
    assert backend.batch_get_v1(KEYS, slots, IoContext(pages=room)) == [Outcome.HIT] * 200
    assert contents(room) != contents(pages())
    room = rooms()
    transfer = PoolTransfer(PoolName.SWA, KEYS, slots)
    answer = backend.batch_get_v2([transfer], IoContext(pages={PoolName.SWA: room}))
    assert answer == {PoolName.SWA: [Outcome.HIT] * 200}
    assert contents(room) != contents(pages())
    assert backend.batch_exists_v2(KEYS, [], IoContext()) == "native"
    assert backend.allocate_host_memory(10, 1) == bytearray(10)
    stored = wrapped(Native(MemoryStore(), None), flip=0.3, at="set")
    assert stored.batch_set_v1(KEYS, slots, IoContext(pages=pages())) is None  # so the default spoils the copies
    plain = wrapped()
    assert plain.batch_get_v1(KEYS, slots, IoContext(pages=rooms())) is None
    assert plain.batch_set_v2([transfer], IoContext()) is None


def test_options_that_are_not_its_own_go_to_the_inner_store() -> None:
    choice = choose_backend("fault", {"inner": "memory", "max_bytes": "1KiB", "flip": "0.5"}, strict=False)
    assert choice.options.options == {"max_bytes": "1KiB"}
    assert choice.options.flip == 0.5
    assert not choice.capabilities.durable
    with pytest.raises(OptionError, match="max_byte"):
        open_session("fault", identity=kit_identity(), options={"inner": "memory", "max_byte": 1})
    with pytest.raises(UnknownNameError, match="memroy"):
        open_session("fault", identity=kit_identity(), options={"inner": "memroy"})
    for wrong in ({"inner": "memory", "flip": 1.5}, {"inner": "fault"}, {}, {"inner": "memory", "at": "never"}):
        with pytest.raises(HiCacheError):
            open_session("fault", identity=kit_identity(), options=wrong)


def kit_identity() -> Any:
    from hicache_core.namespace import Identity

    return Identity("model", "declared:w", "float16", 16, "mha", layer_num=2, head_num=2, head_dim=2)


def test_every_option_has_help() -> None:
    assert all(option.help for option in describe_options(FaultOptions))


def test_what_the_faults_break_is_not_declared() -> None:
    full = Capabilities(
        durable=True, shared=True, zero_copy_v1=True, native_v2=True, clean_miss=True, replace=True, scan=True
    )
    assert without_broken(full, FaultOptions(inner="memory", delay=0.5, fail=0.5)) == full
    damaging = without_broken(full, FaultOptions(inner="memory", flip=0.5))
    assert (damaging.durable, damaging.zero_copy_v1, damaging.shared) == (False, True, True)
    stored = without_broken(full, FaultOptions(inner="memory", flip=0.5, at="set"))
    assert (stored.durable, stored.zero_copy_v1, stored.native_v2) == (False, False, False)
    assert not without_broken(full, FaultOptions(inner="memory", stale_exists=0.5)).native_v2


def test_dice_are_independent_and_fair() -> None:
    dice = Dice(1)
    assert not any(dice.strikes(0.0, "x") for _ in range(100))
    assert all(dice.strikes(1.0, "x") for _ in range(100))
    assert 400 < sum(dice.strikes(0.5, "y") for _ in range(1000)) < 600


@pytest.mark.parametrize("at", ["get", "set"])
def test_a_session_over_faults_never_gives_a_wrong_page(kit: Any, at: str) -> None:
    options = {"inner": "memory", "seed": 7, "flip": 0.1, "truncate": 0.1, "reorder": 0.1, "at": at}
    session = open_session("fault", identity=kit.identity, options=options)
    hashes, data = kit.hashes(100), kit.data(100)
    session.set(hashes, kit.sources(100))
    hits = 0
    for _ in range(3):
        room = kit.rooms(100)
        for i, outcome in enumerate(session.get(hashes, room)):
            hits += bool(outcome)
            assert not outcome or kit.bytes_of(room[i]) == data[i]
    assert hits > 100
    assert session.close().clean
