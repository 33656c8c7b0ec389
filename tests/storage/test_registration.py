"""Memory that is registered with a store is the session's to take back, whatever the store said."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import pytest

from hicache_core.errors import MisuseError, StorageError
from hicache_core.plugin.spec import hookimpl
from hicache_core.types import HostPoolView, PoolName

from .conftest import BOUND, Plain


class Registering(Plain):
    """Keeps what is registered; holds the named hook until `release`, or raises from it after it has worked."""

    def __init__(self, held: str = "", raising: str = "") -> None:
        super().__init__()
        self.registered: list[int] = []
        self.held, self.raising = held, raising
        self.entered, self.release = threading.Semaphore(0), threading.Event()

    def arrive(self, hook: str) -> None:
        if hook == self.held:
            self.entered.release()
            assert self.release.wait(BOUND)

    def leave(self, hook: str) -> None:
        if hook == self.raising:
            self.raising = ""
            raise OSError("the answer was lost")

    @hookimpl
    def register_host_pool(self, view: HostPoolView) -> None:
        self.arrive("register")
        self.registered.append(id(view))
        self.leave("register")

    @hookimpl
    def unregister_host_pool(self, view: HostPoolView) -> None:
        self.arrive("unregister")
        if self.raising != "unregister":
            self.registered.remove(id(view))
        self.leave("unregister")


def test_of_several_that_register_one_name_one_does(kit: Any) -> None:
    store = Registering(held="register")
    session = kit.open(store)
    pools = [kit.HostPool(PoolName.KV, 1) for _ in range(3)]
    first = threading.Thread(target=session.register_host_pool, args=(pools[0],))
    first.start()
    assert store.entered.acquire(timeout=BOUND)
    for pool in pools[1:]:
        with pytest.raises(MisuseError, match="registered already"):
            session.register_host_pool(pool)
    store.release.set()
    first.join(BOUND)
    assert store.registered == [id(pools[0])]
    assert session.close(BOUND).clean
    assert not store.registered


@pytest.mark.parametrize("hook", ["register", "unregister"])
@pytest.mark.parametrize("way", ["late", "lost"])
def test_a_pool_that_the_store_may_hold_is_kept_and_taken_back(kit: Any, hook: str, way: str) -> None:
    store = Registering(**{"held" if way == "late" else "raising": hook})
    session = kit.open(store)
    pool = kit.HostPool(PoolName.KV, 1)
    alive = weakref.ref(pool)
    if hook == "unregister":
        session.register_host_pool(pool)
    with pytest.raises(StorageError):
        getattr(session, f"{hook}_host_pool")(pool, timeout=0.01 if way == "late" else BOUND)
    del pool
    gc.collect()
    assert alive() is not None  # the store may move bytes in it
    store.release.set()
    replacement = kit.HostPool(PoolName.KV, 1)
    session.register_host_pool(replacement)
    assert session.close(BOUND).clean
    assert not store.registered
    del replacement
    gc.collect()
    assert alive() is None


def test_a_pool_that_a_store_refused_is_no_error_of_close(kit: Any) -> None:
    class Refusing(Registering):
        @hookimpl
        def register_host_pool(self, view: HostPoolView) -> None:
            raise OSError("not enough locked memory")

    session = kit.open(Refusing())
    with pytest.raises(StorageError, match="locked memory"):
        session.register_host_pool(kit.HostPool(PoolName.KV, 1))
    assert session.close(BOUND).clean
