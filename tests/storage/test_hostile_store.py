"""Stores that are careless or hostile with what they are lent and with what they answer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from hicache_core.plugin.spec import hookimpl
from hicache_core.storage.breaker import Breaker
from hicache_core.storage.calls import StoreCalls
from hicache_core.storage.handles import Call
from hicache_core.storage.ledger import StorageLedger
from hicache_core.storage.settings import SessionSettings
from hicache_core.types import Capabilities, IoContext, Outcome, Page

HIT, MISS, STORED = Outcome.HIT, Outcome.MISS, Outcome.STORED
UNAVAILABLE = Outcome.UNAVAILABLE


class Overriding:
    """Wraps a Plain backend; get, set and exists go to functions of the test."""

    def __init__(self, inner: Any, **hooks: Callable[..., Any]) -> None:
        self.inner, self.hooks = inner, hooks

    @hookimpl
    def batch_exists(self, keys: Sequence[str]) -> Any:
        return self.hooks.get("exists", self.inner.batch_exists)(keys)

    @hookimpl
    def batch_get(self, keys: Sequence[str], pages: Sequence[Page], ctx: IoContext) -> Any:
        return self.hooks.get("get", self.inner.batch_get)(keys, pages, ctx)

    @hookimpl
    def batch_set(self, keys: Sequence[str], pages: Sequence[Page], ctx: IoContext) -> Any:
        return self.hooks.get("set", self.inner.batch_set)(keys, pages, ctx)

    @hookimpl
    def close(self) -> None:
        self.inner.close()


class EqualToAnything:
    """Says yes to every comparison."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return True


class Unprintable(Exception):
    """An exception whose text cannot be made."""

    def __str__(self) -> str:
        raise Unprintable


# -- what the store is lent


def test_a_store_that_sorts_what_it_was_given_confuses_no_page(kit: Any) -> None:
    """It would answer in its own order: a page that it never had would be a HIT."""
    store = kit.Plain()

    def get(keys: Any, pages: Any, ctx: IoContext) -> list[Outcome]:
        order = sorted(range(len(keys)), key=lambda i: keys[i])
        keys[:], pages[:] = [keys[i] for i in order], [pages[i] for i in order]
        return [store.fill(key, page) for key, page in zip(keys, pages, strict=True)]

    session = kit.open(Overriding(store, get=get))
    here, missing = sorted(kit.hashes(2))
    data = kit.sources(2)
    assert session.set([here], data[:1]) == [STORED]
    rooms = kit.rooms(2)
    outcomes = session.get([missing, here], rooms)
    for room, outcome, right in zip(rooms, outcomes, [None, data[0]], strict=True):
        assert outcome is not HIT or (right is not None and kit.bytes_of(room) == b"".join(right))


@pytest.mark.parametrize("consume", [list.clear, list.pop, lambda keys: keys.append(keys[0])])
def test_a_store_that_uses_up_its_keys_changes_no_answer(kit: Any, consume: Callable[[Any], Any]) -> None:
    store = kit.Plain()

    def exists(keys: Any) -> int:
        count: int = store.batch_exists(keys)
        consume(keys)
        return count

    def put(keys: Any, pages: Any, ctx: IoContext) -> list[Outcome]:
        outcomes: list[Outcome] = store.batch_set(keys, pages, ctx)
        consume(keys)
        consume(pages)
        return outcomes

    session = kit.open(Overriding(store, exists=exists, set=put))
    assert session.set(kit.hashes(3), kit.sources(3)) == [STORED] * 3
    assert session.exists(kit.hashes(3)) == 3
    assert session.exists(kit.hashes(5)) == 3
    assert not session.ledger.recent_errors


@pytest.mark.parametrize("seal", [True, False])
@pytest.mark.parametrize("inner", [True, False])
def test_a_buffer_of_the_store_is_no_filled_page(kit: Any, seal: bool, inner: bool) -> None:
    """It hands over its own buffers instead of filling those that it was lent: the caller's stay as they were."""
    store = kit.Plain()

    def get(keys: Any, pages: Any, ctx: IoContext) -> list[Outcome]:
        for i, key in enumerate(keys):
            at, page = 0, list(pages[i])
            for j, buffer in enumerate(page):
                piece = memoryview(bytearray(store.pages[key][at : at + len(buffer)]))
                at += len(buffer)
                if inner:
                    pages[i][j] = piece
                page[j] = piece
            pages[i] = page
        return [HIT] * len(keys)

    session = kit.open(Overriding(store, get=get), settings=SessionSettings(seal=seal))
    session.set(kit.hashes(2), kit.sources(2))
    rooms = kit.rooms(2)
    outcomes = session.get(kit.hashes(2), rooms)
    if seal or inner:
        assert HIT not in outcomes  # without a seal nobody can tell that a page was not filled
    assert [kit.bytes_of(room) for room in rooms] == [b"\xaa" * kit.page_bytes] * 2


def test_slots_are_the_sessions_own(kit: Any) -> None:
    """Neither the caller, who uses its array again, nor the store changes which pages an operation means."""
    import numpy as np

    from hicache_core.types import PoolName

    store = kit.Stalling("batch_get")
    session = kit.open(store)
    pool = kit.HostPool(PoolName.KV, 4)
    session.register_host_pool(pool)
    slots = np.arange(2)
    handle = session.submit_get_v1(kit.hashes(2), slots)
    assert store.entered.acquire(timeout=kit.bound)
    slots[:] = 3
    batch = session._parts.pool_batch(PoolName.KV, kit.hashes(2), slots)
    assert batch.slots is not slots
    assert not np.shares_memory(batch.slots, slots)
    store.release.set()
    assert handle.result() == [MISS, MISS]


# -- what the store answers


def test_an_answer_is_not_changed_by_the_next_one(kit: Any) -> None:
    kept = [STORED, STORED]
    session = kit.open(Overriding(kit.Plain(), set=lambda *_: kept))
    first = session.set(kit.hashes(2), kit.sources(2))
    kept[0] = Outcome.REJECTED
    assert first == [STORED, STORED]
    assert session.set(kit.hashes(2), kit.sources(2)) == [Outcome.REJECTED, STORED]


def test_a_store_that_keeps_its_answer_finds_it_unchanged(kit: Any, spoil: Callable[[Any, str], None]) -> None:
    store, kept = kit.Plain(), [HIT, HIT]

    def get(keys: Any, pages: Any, ctx: IoContext) -> list[Outcome]:
        store.batch_get(keys, pages, ctx)
        return kept

    session = kit.open(Overriding(store, get=get))
    session.set(kit.hashes(2), kit.sources(2))
    spoil(store.pages, next(iter(store.pages)))
    assert session.get(kit.hashes(2), kit.rooms(2))[0] is not HIT
    assert kept == [HIT, HIT]


@pytest.mark.parametrize("operation", ["get", "set"])
def test_what_only_equals_an_outcome_is_none(kit: Any, operation: str) -> None:
    session = kit.open(Overriding(kit.Plain(), **{operation: lambda keys, *_: [EqualToAnything()] * len(keys)}))
    moved = kit.rooms(2) if operation == "get" else kit.sources(2)
    assert getattr(session, operation)(kit.hashes(2), moved) == [UNAVAILABLE] * 2
    assert session.ledger.as_dict()["violations"] == {f"batch_{operation}": 1}


@pytest.mark.parametrize("operation", ["get", "set", "exists"])
def test_an_exception_without_a_text_is_an_exception(kit: Any, operation: str) -> None:
    def fail(*_: Any) -> Any:
        raise Unprintable

    session = kit.open(Overriding(kit.Plain(), **{operation: fail}))
    submit = getattr(session, f"submit_{operation}")
    pages = {"get": [kit.rooms(1)], "set": [kit.sources(1)], "exists": []}[operation]
    handle = submit(kit.hashes(1), *pages)
    assert handle.result(kit.bound) in ([UNAVAILABLE], 0)
    assert handle.returned.wait(kit.bound)
    direction = "write" if operation == "set" else "read"
    status = session.status()
    assert status.breakers[direction].failures_in_row == 1
    assert status.breakers[direction].abandoned_now == 0
    assert "Unprintable" in status.recent_errors[0]


# -- a probe always ends


class Now:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time


@pytest.fixture
def due() -> tuple[Breaker, Now]:
    """A breaker that is open and due for a probe."""
    now = Now()
    breaker = Breaker(now)
    breaker.force_open(1.0, "for the test")
    now.time = 1.5
    return breaker, now


def test_a_probe_of_a_call_that_was_given_up_before_is_not_the_last(due: tuple[Breaker, Now]) -> None:
    """Given up between claim and hook: the breaker was told of the abandoned call before it gave out the probe."""
    breaker, now = due
    calls = StoreCalls(breaker, StorageLedger())
    call = Call(lambda _: None, lambda *_: None)
    assert call.claim(None)
    assert call.give_up()
    calls.outcomes(call, "batch_get", 2, lambda lo, hi: [HIT] * (hi - lo))
    now.time += 100.0
    assert not breaker.blocked
    assert calls.outcomes(Call(lambda _: None, lambda *_: None), "batch_get", 1, lambda lo, hi: [HIT]) == [HIT]
    assert breaker.status().state == "closed"


@pytest.mark.parametrize("ask", ["outcomes", "run"])
def test_a_probe_that_a_person_interrupted_is_not_the_last(due: tuple[Breaker, Now], ask: str) -> None:
    breaker, now = due
    calls = StoreCalls(breaker, StorageLedger())

    def interrupted(*_: int) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        getattr(calls, ask)(Call(lambda _: None, lambda *_: None), "batch_get", 1, interrupted)
    now.time += 100.0
    assert not breaker.blocked


# -- threads


def test_callers_of_a_store_that_never_waits_do_not_run_out_of_memory_for_seals(kit: Any) -> None:
    """More threads than the session has seal slots for are in the store at once: the others queue."""
    count = 12
    store = kit.Plain()
    gate = threading.Semaphore(0)
    inside = threading.Semaphore(0)

    def get(keys: Any, pages: Any, ctx: IoContext) -> Any:
        inside.release()
        assert gate.acquire(timeout=kit.bound)
        return store.batch_get(keys, pages, ctx)

    session = kit.open(Overriding(store, get=get), Capabilities(nonblocking=True))
    session.set(kit.hashes(1), kit.sources(1))
    answers: list[Any] = []

    def ask() -> None:
        answers.append(session.get(kit.hashes(1), kit.rooms(1), timeout=kit.bound))

    threads = [threading.Thread(target=ask) for _ in range(count)]
    for thread in threads:
        thread.start()
    for _ in range(4):  # two workers, and two callers in place of replacements
        assert inside.acquire(timeout=kit.bound)
    assert not inside.acquire(blocking=False)
    for _ in range(count):
        gate.release()
    for thread in threads:
        thread.join(kit.bound)
    assert answers == [[HIT]] * count
    assert [ring.borrowed for ring in session._parts.rings] == [0, 0]


def test_no_thread_to_be_had_is_no_exception(kit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    session = kit.open(kit.Plain())

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        assert session.exists(kit.hashes(2)) == 0
        assert session.get(kit.hashes(2), kit.rooms(2)) == [UNAVAILABLE] * 2
        handle = session.submit_set(kit.hashes(2), kit.sources(2))
        assert handle.result() == [UNAVAILABLE] * 2
        assert handle.returned.is_set()
    assert session.set(kit.hashes(2), kit.sources(2)) == [STORED] * 2  # and then there are some again
    assert session.get(kit.hashes(2), kit.rooms(2)) == [HIT] * 2


def test_some_workers_are_better_than_none(kit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    session, start, begun = kit.open(kit.Plain()), threading.Thread.start, []

    def once(self: threading.Thread) -> None:
        if begun:
            raise RuntimeError("can't start new thread")
        begun.append(self)
        start(self)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", once)
        assert session.get(kit.hashes(1), kit.rooms(1)) == [MISS]
    assert len(begun) == 1
