"""A tiny model, and an engine that computes a page's KV from the page's hash."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest

from hicache_core.config.model import HiCacheConfig
from hicache_core.controller.request import CacheReport, Request
from hicache_core.errors import TransferError
from hicache_core.hicache import HiCache
from hicache_core.namespace import Identity
from hicache_core.plugin.select import BackendChoice
from hicache_core.plugin.spec import hookimpl
from hicache_core.pools.device.numpy_pool import NumpyDevicePool
from hicache_core.pools.geometry import KVGeometry
from hicache_core.pools.host import HostPool, make_host_pool
from hicache_core.storage.opening import open_session
from hicache_core.storage.session import StorageSession
from hicache_core.storage.settings import SessionSettings
from hicache_core.types import BackendSpec, Outcome, Page, Slots

PAGE = 4
LAYERS = 2
GEOMETRY = KVGeometry("mha", LAYERS, 1, 2, dtype="uint8", page_size=PAGE)
IDENTITY = Identity("tiny", "declared:tiny", "uint8", PAGE, "mha", LAYERS, 1, 2)
BOUND = 30.0
"""Seconds after which a wait fails a test; nothing comes near it."""


def kv_of(page_hash: str) -> bytes:
    """What a page's KV must be."""
    return hashlib.sha256(page_hash.encode()).digest()[: GEOMETRY.page_nbytes]


class Engine:
    """Walks requests through a cache, and compares every page it is given with what it must hold."""

    def __init__(self, cache: HiCache, host: HostPool | None) -> None:
        self.cache, self.host = cache, host
        self.wrong_pages = 0

    def wait_for_prefetch(self, request: Request) -> None:
        for _ in range(10_000):
            self.cache.check_hicache_events()
            if self.cache.check_prefetch_progress(request):
                return
            self.cache.wait_for_events(BOUND)
        raise AssertionError("the prefetch did not end")

    def admit(self, request: Request) -> None:
        """Up to the moment at which the request's prefix is in L1."""
        cache = self.cache
        while True:
            if cache.prefetch_from_storage(request):
                self.wait_for_prefetch(request)
            cache.init_load_back(request)
            producer = cache.ready_to_load_host_cache()
            try:
                for layer in range(cache.device_pool.geometry.layer_num):
                    cache.wait_layer(producer, layer)
                break
            except TransferError:
                cache.abandon(request)
        self.compare(request, request.prefix_pages)

    def compare(self, request: Request, pages: int) -> None:
        hashes = request.hashes(pages)
        for slot, page_hash in zip(request.slots[:pages].tolist(), hashes, strict=True):
            self.wrong_pages += self.cache.device_pool.read_page(slot) != kv_of(page_hash)

    def compute(self, request: Request) -> bool:
        """Take pages for every token that has none, and fill the whole ones; False where there is no room."""
        missing = -(-len(request) // PAGE) - len(request.slots)
        if missing > 0:
            slots = self.cache.alloc_pages(missing)
            if slots is None:
                return False
            request.add_slots(slots)
        for page in range(request.prefix_pages, request.pages):
            self.cache.device_pool.write_page(int(request.slots[page]), kv_of(request.hashes(page + 1)[page]))
        return True

    def run(self, tokens: Any, *, drain: bool = True, **how: Any) -> CacheReport:
        """One request from queue to end; its report."""
        request = self.cache.new_request("r", tokens, **how)
        self.admit(request)
        assert self.compute(request), "no room in L1"
        self.cache.cache_finished_req(request)
        if drain:
            assert self.cache.drain(BOUND)
        return request.report

    def check(self) -> None:
        """Everything that must hold between two steps."""
        cache = self.cache
        cache.tree.check_integrity()
        cache.device_pool.check_integrity()
        assert cache.ledger.problems() == []
        assert self.wrong_pages == 0
        held = sum(len(r.slots) - r.inserted_pages for r in cache._requests.values())
        assert cache.device_pool.available + cache.tree.device_pages + held == cache.device_pool.capacity
        if self.host is not None:
            self.host.check_integrity()

    def check_at_rest(self) -> None:
        """Everything that must hold when nothing is under way and no request is left."""
        assert self.cache.drain(BOUND)
        self.check()
        cache = self.cache
        assert cache.device_pool.available + cache.tree.device_pages == cache.device_pool.capacity
        assert cache.tree.device_protected_pages == 0
        assert all(not node.lock_ref and not node.host_lock_ref for node in cache.tree.walk())
        if self.host is not None:
            held = cache.tree.host_pages + cache.status()["quarantined_pages"]
            assert self.host.available + held == self.host.capacity


class NoOptions(msgspec.Struct, frozen=True):
    """The gated store takes none."""


class GatedStore:
    """A store whose calls can be held, refused, and counted. Pages are kept as bytes, by key."""

    def __init__(self) -> None:
        self.pages: dict[str, bytes] = {}
        self.calls: list[tuple[str, int]] = []
        self.gates = {hook: threading.Event() for hook in ("exists", "get", "set")}
        self.entered = {hook: threading.Semaphore(0) for hook in self.gates}
        self.failing: set[str] = set()
        self.failing_pages: set[str] = set()
        self.rejecting = False
        for gate in self.gates.values():
            gate.set()

    def hold(self, hook: str) -> None:
        self.gates[hook].clear()

    def release(self, hook: str) -> None:
        self.gates[hook].set()

    def wait_until_inside(self, hook: str) -> None:
        assert self.entered[hook].acquire(timeout=BOUND)

    def _pass(self, hook: str, count: int) -> None:
        self.calls.append((hook, count))
        self.entered[hook].release()
        assert self.gates[hook].wait(BOUND), "nobody opened the gate"
        if hook in self.failing:
            raise OSError(f"{hook} was made to fail")

    @hookimpl
    def batch_exists(self, keys: Sequence[str]) -> int:
        self._pass("exists", len(keys))
        return next((i for i, key in enumerate(keys) if key not in self.pages), len(keys))

    @hookimpl
    def batch_get(self, keys: Sequence[str], pages: Sequence[Page]) -> list[Outcome]:
        self._pass("get", len(keys))
        outcomes = []
        for key, page in zip(keys, pages, strict=True):
            data, start = self.pages.get(key), 0
            outcomes.append(Outcome.HIT if data is not None else Outcome.MISS)
            for buffer in page if data is not None else ():
                assert data is not None
                buffer[:] = data[start : start + len(buffer)]
                start += len(buffer)
        return outcomes

    @hookimpl
    def batch_set(self, keys: Sequence[str], pages: Sequence[Page]) -> list[Outcome]:
        self._pass("set", len(keys))
        if any(key.split("/")[1][:64] in self.failing_pages for key in keys):
            raise OSError("this page was made to fail")
        if self.rejecting:
            return [Outcome.REJECTED] * len(keys)
        self.pages.update((key, b"".join(page)) for key, page in zip(keys, pages, strict=True))
        return [Outcome.STORED] * len(keys)

    @hookimpl
    def close(self) -> None:
        self.calls.append(("close", 0))


def tokens_for(*pages: int) -> np.ndarray[Any, Any]:
    """Whole pages: the same number, the same page."""
    return np.repeat(np.asarray(pages, np.uint32), PAGE)


def slots_of(*numbers: int) -> Slots:
    return np.asarray(numbers, np.int64)


Make = Callable[..., Engine]


@pytest.fixture
def open_storage() -> Iterator[Callable[..., StorageSession]]:
    opened: list[StorageSession] = []

    def build(backend: str = "memory", *, timeout: float = 10.0, **options: Any) -> StorageSession:
        session = open_session(backend, identity=IDENTITY, options=options, settings=SessionSettings(timeout=timeout))
        opened.append(session)
        return session

    yield build
    for session in opened:
        session.close()


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Keep injected exceptions out of captured log records, which would hold their frames and so the host pool."""
    logger = logging.getLogger("hicache_core.storage")
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(logging.NOTSET)


@pytest.fixture
def store() -> GatedStore:
    return GatedStore()


@pytest.fixture
def open_gated(store: GatedStore) -> Iterator[Callable[..., StorageSession]]:
    """open_gated(timeout=…) -> a session over `store`; several share it."""
    opened: list[StorageSession] = []

    def build(timeout: float = BOUND, read_workers: int = 2) -> StorageSession:
        spec = BackendSpec("gated", "a test's store", NoOptions, lambda options, ctx: store)
        choice = BackendChoice(spec, NoOptions(), "a test")
        settings = SessionSettings(timeout=timeout, read_workers=read_workers)
        opened.append(open_session(choice, identity=IDENTITY, settings=settings))
        return opened[-1]

    yield build
    for gate in store.gates.values():
        gate.set()
    for session in opened:
        session.close()


def make_engine(
    device_pages: int = 16,
    host_pages: int | None = 32,
    session: StorageSession | None = None,
    transfer_hook: Any = None,
    sync: Any = None,
    clock: Any = None,
    geometry: KVGeometry = GEOMETRY,
    **config: Any,
) -> Engine:
    """An engine over a new cache. Thresholds are one page, and it waits for L3, unless `config` says otherwise."""
    settings: dict[str, Any] = {
        "page_size": PAGE,
        "prefetch_threshold": 1,
        "load_back_threshold": 1,
        "hicache_storage_prefetch_policy": "wait_complete",
    }
    host = make_host_pool(geometry, "page_first", host_pages, reserve=0) if host_pages else None
    more = {} if clock is None else {"clock": clock}
    cache = HiCache(
        NumpyDevicePool(geometry, device_pages),
        host,
        config=HiCacheConfig(**(settings | config)),
        session=session,
        transfer_hook=transfer_hook,
        sync=sync,
        owns_pools=True,
        **more,
    )
    return Engine(cache, host)


@pytest.fixture
def build_engine() -> Make:
    """make_engine; whoever calls it shuts the cache down."""
    return make_engine


@pytest.fixture
def make(open_storage: Any, open_gated: Any) -> Iterator[Make]:  # torn down before the stores are
    """make(device_pages=…, host_pages=…, session=…, **config) -> Engine; shut down at the end."""
    engines: list[Engine] = []

    def build(**how: Any) -> Engine:
        engines.append(make_engine(**how))
        return engines[-1]

    yield build
    for engine in engines:
        assert engine.wrong_pages == 0
        assert engine.cache.shutdown(BOUND)


@pytest.fixture
def pages() -> Callable[..., np.ndarray[Any, Any]]:
    return tokens_for


@pytest.fixture
def identity() -> Identity:
    return IDENTITY
