"""Memory that was lent is free once its operation is over, without the garbage collector."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from hicache_core.plugin.spec import hookimpl
from hicache_core.storage.settings import SessionSettings
from hicache_core.types import Capabilities, Outcome, PoolName, PoolTransfer


@pytest.fixture(autouse=True)
def without_collector() -> Iterator[None]:
    """What lies in a cycle of references stays for ever."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def lent(kit: Any) -> tuple[list[list[memoryview]], weakref.ref[Any]]:
    """Two pages in memory that tells when it is gone."""
    memory = np.zeros((2, kit.page_bytes), np.uint8)
    return [[memoryview(row)] for row in memory], weakref.ref(memory)


def by_get(kit: Any, session: Any) -> list[weakref.ref[Any]]:
    pages, gone = lent(kit)
    session.get(kit.hashes(2), pages)
    return [gone]


def by_set(kit: Any, session: Any) -> list[weakref.ref[Any]]:
    pages, gone = lent(kit)
    session.set(kit.hashes(2), pages)
    return [gone]


def by_handle(kit: Any, session: Any) -> list[weakref.ref[Any]]:
    pages, gone = lent(kit)
    handle = session.submit_get(kit.hashes(2), pages)
    assert handle.returned.wait(kit.bound)
    handle.result()
    return [gone, weakref.ref(handle), weakref.ref(handle.calls[0].given_up)]


def by_callback(kit: Any, session: Any) -> list[weakref.ref[Any]]:
    pages, gone = lent(kit)
    handle = session.submit_set(kit.hashes(2), pages)
    handle.add_returned_callback(lambda done: done.result())
    assert handle.returned.wait(kit.bound)
    return [gone, weakref.ref(handle)]


def by_cancel(kit: Any, session: Any) -> list[weakref.ref[Any]]:
    pages, gone = lent(kit)
    handle = session.submit_get(kit.hashes(2), pages)
    handle.cancel()
    handle.abandon()
    assert handle.returned.wait(kit.bound)
    return [gone, weakref.ref(handle)]


def by_pools(kit: Any, session: Any) -> list[weakref.ref[Any]]:
    pool = kit.HostPool(PoolName.KV, 2)
    session.register_host_pool(pool)
    slots = np.arange(2)
    session.set_v1(kit.hashes(2), slots)
    session.get_v1(kit.hashes(2), slots)
    session.get_v2([PoolTransfer(PoolName.KV, kit.hashes(2), slots)])
    session.unregister_host_pool(pool)
    return [weakref.ref(pool.memory)]


def by_misuse(kit: Any, session: Any) -> list[weakref.ref[Any]]:
    pages, gone = lent(kit)
    assert session.set(["\ud800", "\ud801"], pages) == [Outcome.UNAVAILABLE] * 2
    return [gone]


WAYS = [by_misuse, by_get, by_set, by_handle, by_callback, by_cancel, by_pools]


class Failing:
    """Raises from every hook, keeping nothing."""

    @hookimpl
    def batch_exists(self) -> int:
        raise OSError("gone")

    @hookimpl
    def batch_get(self, keys: Any, pages: Any) -> list[Outcome]:
        raise OSError("gone")

    @hookimpl
    def batch_set(self, keys: Any, pages: Any) -> list[Outcome]:
        raise OSError("gone")

    @hookimpl
    def close(self) -> None:
        """Nothing to close."""


class RaisingObserver:
    """Sees every page, and then raises."""

    @hookimpl(wrapper=True)
    def batch_get(self, keys: Any, pages: Any) -> Generator[None, Any, Any]:
        yield
        raise ValueError(len(pages))

    @hookimpl(wrapper=True)
    def batch_set(self, keys: Any, pages: Any) -> Generator[None, Any, Any]:
        raise ValueError(len(pages))
        yield


@pytest.mark.parametrize("observers", [(), (RaisingObserver(),)], ids=["bare", "observed"])
@pytest.mark.parametrize("lent_pools", [True, False])
@pytest.mark.parametrize("failing", [True, False])
@pytest.mark.parametrize("nonblocking", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_nothing_keeps_the_memory_of_an_operation_that_is_over(
    kit: Any,
    way: Callable[..., list[weakref.ref[Any]]],
    nonblocking: bool,
    failing: bool,
    lent_pools: bool,
    observers: Sequence[object],
) -> None:
    backend = Failing() if failing else kit.Plain()
    settings = SessionSettings(lent_pools=lent_pools, read_workers=1, write_workers=1)
    session = kit.open(backend, Capabilities(nonblocking=nonblocking), settings=settings, observers=observers)
    session.set(kit.hashes(1), kit.sources(1))
    gone = way(kit, session)
    for group in session._parts.groups:  # a worker lets go a moment after it has told
        group.close()
        assert group.join(kit.bound + group.breaker._clock())
    assert all(reference() is None for reference in gone)


def test_memory_is_free_after_a_call_that_came_back_late(kit: Any) -> None:
    store = kit.Stalling("batch_get")
    session = kit.open(store)
    pages, gone = lent(kit)
    handle = session.submit_get(kit.hashes(2), pages, timeout=0.0)
    assert store.entered.acquire(timeout=kit.bound) or handle.result()
    handle.abandon()
    del pages
    store.release.set()
    assert handle.returned.wait(kit.bound)
    for group in session._parts.groups:
        group.close()
        assert group.join(kit.bound + group.breaker._clock())
    assert gone() is None


def test_deadlines_of_operations_that_are_over_do_not_add_up(kit: Any) -> None:
    session = kit.open(kit.Plain())
    keeper = session._parts.keeper
    for _ in range(5000):
        session.submit_get([], []).result()
        handle = session.submit_exists(kit.hashes(1), timeout=3600.0)
        handle.result()
        del handle
    assert len(keeper._due) <= 1024 + 1
