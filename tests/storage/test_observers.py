"""Observers see and time. They can neither change a result nor make a call fail."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from hicache_core.errors import HookError, MisuseError
from hicache_core.plugin.spec import hookimpl
from hicache_core.storage.dispatch import Dispatch
from hicache_core.storage.ledger import StorageLedger
from hicache_core.types import Outcome, PoolName


class Sees:
    def __init__(self) -> None:
        self.seen: list[Any] = []

    @hookimpl(wrapper=True)
    def batch_get(self, keys: Any) -> Generator[None, Any, Any]:
        answer = yield
        self.seen.append((len(keys), answer))
        return answer

    @hookimpl(wrapper=True)
    def batch_set_v1(self) -> Generator[None, Any, Any]:
        answer = yield
        self.seen.append(answer)
        return answer


class Changes(Sees):
    @hookimpl(wrapper=True)
    def batch_get(self, keys: Any) -> Generator[None, Any, Any]:
        keys.clear()
        answer = yield
        self.seen.append(answer)
        return [Outcome.HIT] * 99


class RaisesBefore(Sees):
    @hookimpl(wrapper=True)
    def batch_get(self) -> Generator[None, Any, Any]:
        raise RuntimeError("observer is broken")
        yield


class RaisesAfter(Sees):
    @hookimpl(wrapper=True)
    def batch_get(self) -> Generator[None, Any, Any]:
        yield
        raise SystemExit("observer is broken")


class Swallows(Sees):
    @hookimpl(wrapper=True)
    def batch_get(self) -> Generator[None, Any, Any]:
        try:
            answer = yield
        except OSError:
            return [Outcome.HIT]
        return answer


class Forgets(Sees):
    @hookimpl(wrapper=True)
    def batch_get(self) -> Generator[None, Any, Any]:
        yield
        yield


def filled(kit: Any, *observers: object) -> tuple[Any, Any]:
    backend = kit.Plain()
    session = kit.open(backend, observers=observers)
    session.set(kit.hashes(2), kit.sources(2))
    return session, backend


def test_an_observer_sees_answers_of_natives_and_of_defaults(kit: Any) -> None:
    import numpy as np

    observer = Sees()
    session, _ = filled(kit, observer)
    assert session.get(kit.hashes(3), kit.rooms(3)) == [Outcome.HIT, Outcome.HIT, Outcome.MISS]
    assert observer.seen == [(3, [Outcome.HIT, Outcome.HIT, Outcome.MISS])]
    session.register_host_pool(kit.HostPool(PoolName.KV, 4))
    session.set_v1(kit.hashes(1, 7), np.array([3]))
    assert observer.seen[-1] == [Outcome.STORED]
    assert session.ledger.as_dict()["observer_errors"] == {}


@pytest.mark.parametrize("kind", [RaisesBefore, RaisesAfter, Forgets])
def test_an_observer_that_raises_is_counted_and_the_call_is_made(kit: Any, kind: type) -> None:
    session, backend = filled(kit, Sees(), kind(), Sees())
    rooms = kit.rooms(2)
    assert session.get(kit.hashes(2), rooms) == [Outcome.HIT] * 2
    assert [kit.bytes_of(room) for room in rooms] == kit.data(2)
    assert session.ledger.as_dict()["observer_errors"] == {"batch_get": 1}
    assert backend.hooks().count("batch_get") == 1
    assert session.healthy()


def test_an_observer_cannot_change_a_result(kit: Any) -> None:
    session, _ = filled(kit, Swallows())

    assert session.get(kit.hashes(3), kit.rooms(3)) == [Outcome.HIT, Outcome.HIT, Outcome.MISS]
    observer = Changes()
    backend = kit.Plain()
    session = kit.open(backend, observers=[observer])
    session.set(kit.hashes(2), kit.sources(2))
    # it emptied its copy of the keys, so the backend was asked for nothing: a failed call, not a wrong page
    assert session.get(kit.hashes(2), kit.rooms(2)) == [Outcome.UNAVAILABLE] * 2


def test_an_observer_that_swallows_an_error_does_not_make_it_a_hit(kit: Any) -> None:
    class Gone(kit.Plain):  # type: ignore[name-defined, misc]
        @hookimpl
        def batch_get(self) -> list[Outcome]:
            raise OSError("gone")

    session = kit.open(Gone(), observers=[Swallows()])
    assert session.get(kit.hashes(1), kit.rooms(1)) == [Outcome.UNAVAILABLE]
    assert session.ledger.as_dict()["exceptions"] == {"batch_get": 1}


class NoWrapper:
    @hookimpl
    def batch_get(self) -> list[Outcome]:
        return []


class First:
    @hookimpl(wrapper=True, tryfirst=True)
    def batch_get(self) -> Generator[None, Any, Any]:
        return (yield)


class Last:
    @hookimpl(wrapper=True, trylast=True)
    def batch_get(self) -> Generator[None, Any, Any]:
        return (yield)


class Misspelt:
    @hookimpl(wrapper=True)
    def batch_got(self) -> Generator[None, Any, Any]:
        return (yield)


@pytest.mark.parametrize("kind", [NoWrapper, First, Last, Misspelt])
def test_what_is_no_observer_is_refused_and_the_store_closed(kit: Any, kind: type) -> None:
    backend = kit.Plain()
    with pytest.raises(HookError, match="batch_g"):
        kit.open(backend, observers=[kind()])
    assert backend.closed == 1


def test_a_backend_that_wraps_is_refused() -> None:
    for kind in (First, Last):
        with pytest.raises(HookError, match="batch_get"):
            Dispatch(kind(), ledger=StorageLedger())


def test_the_plugins_of_an_open_session_are_fixed(kit: Any) -> None:
    dispatch = Dispatch(kit.Plain(), ledger=StorageLedger())
    with pytest.raises(MisuseError, match="fixed"):
        dispatch._manager.register(Sees())


def test_calls_may_nest() -> None:
    """An observer that asks the same dispatch does not mix up the notes."""

    class Backend:
        @hookimpl
        def batch_exists(self, keys: Any) -> int:
            return len(keys)

    class Asks:
        dispatch: Dispatch

        @hookimpl(wrapper=True)
        def batch_exists(self, keys: Any) -> Generator[None, Any, Any]:
            if len(keys) > 1:
                assert self.dispatch.call("batch_exists", keys=keys[:1], ctx=None) == 1
            return (yield)

    observer = Asks()
    observer.dispatch = Dispatch(Backend(), ledger=StorageLedger(), observers=[observer])
    assert observer.dispatch.call("batch_exists", keys=["a", "b"], ctx=None) == 2
