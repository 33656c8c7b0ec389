"""Backends to be wrong with, and sessions around them."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest

from hicache_core.namespace import Identity
from hicache_core.plugin.select import BackendChoice
from hicache_core.plugin.spec import hookimpl, pagewise
from hicache_core.storage import StorageSession, open_session
from hicache_core.storage.memory import CAPABILITIES, MemoryBackend, MemoryStore
from hicache_core.types import BackendSpec, Capabilities, IoContext, Outcome, Page, PoolName, Slots

BOUND = 30.0
"""Seconds after which a wait has failed. Nothing here takes a second."""
PAGE = 256


class NoOptions(msgspec.Struct):
    """A backend without options."""


class Plain:
    """The least that a backend can be: the required hooks over a dict of bytes."""

    def __init__(self) -> None:
        self.pages: dict[str, bytes] = {}
        self.calls: list[tuple[str, list[str]]] = []
        self.closed = 0

    @hookimpl
    def batch_exists(self, keys: Sequence[str]) -> int:
        self.calls.append(("batch_exists", list(keys)))
        return next((i for i, key in enumerate(keys) if key not in self.pages), len(keys))

    @hookimpl
    def batch_get(self, keys: Sequence[str], pages: Sequence[Page], ctx: IoContext) -> list[Outcome]:
        self.calls.append(("batch_get", list(keys)))
        return [self.fill(key, page) for key, page in zip(keys, pages, strict=True)]

    @hookimpl
    def batch_set(self, keys: Sequence[str], pages: Sequence[Page], ctx: IoContext) -> list[Outcome]:
        self.calls.append(("batch_set", list(keys)))
        for key, page in zip(keys, pages, strict=True):
            self.pages.setdefault(key, b"".join(page))
        return [Outcome.STORED] * len(keys)

    @hookimpl
    def close(self) -> None:
        self.closed += 1

    def fill(self, key: str, page: Page) -> Outcome:
        data = self.pages.get(key)
        if data is None:
            return Outcome.MISS
        if len(data) != sum(map(len, page)):
            return Outcome.CORRUPT
        for buffer in page:
            buffer[:] = data[: len(buffer)]
            data = data[len(buffer) :]
        return Outcome.HIT

    def hooks(self) -> list[str]:
        return [hook for hook, _ in self.calls]


class Stalling(Plain):
    """Holds every call of the named hooks until `release` is set; `entered` counts arrivals."""

    def __init__(self, *hooks: str) -> None:
        super().__init__()
        self.held = set(hooks)
        self.release = threading.Event()
        self.entered = threading.Semaphore(0)
        self.left = threading.Semaphore(0)

    def hold(self, hook: str) -> None:
        if hook in self.held:
            self.entered.release()
            assert self.release.wait(BOUND)

    @hookimpl
    def batch_exists(self, keys: Sequence[str]) -> int:
        self.hold("batch_exists")
        return super().batch_exists(keys)

    @hookimpl
    def batch_get(self, keys: Sequence[str], pages: Sequence[Page], ctx: IoContext) -> list[Outcome]:
        self.hold("batch_get")
        outcomes = super().batch_get(keys, pages, ctx)
        self.left.release()
        return outcomes

    @hookimpl
    def batch_set(self, keys: Sequence[str], pages: Sequence[Page], ctx: IoContext) -> list[Outcome]:
        self.hold("batch_set")
        return super().batch_set(keys, pages, ctx)


class Paged(Plain):
    """Plain, page by page, its hooks marked. `silent`: keys for which it does not call back."""

    def __init__(self) -> None:
        super().__init__()
        self.silent: set[str] = set()

    @hookimpl
    @pagewise
    def batch_get(self, keys: Sequence[str], pages: Sequence[Page], ctx: IoContext) -> list[Outcome]:
        self.calls.append(("batch_get", list(keys)))
        outcomes = []
        for index, (key, page) in enumerate(zip(keys, pages, strict=True)):
            outcomes.append(self.fill(key, page))
            if key not in self.silent:
                ctx.verify_page(index)
        return outcomes

    @hookimpl
    @pagewise
    def batch_set(self, keys: Sequence[str], pages: Sequence[Page], ctx: IoContext) -> list[Outcome]:
        self.calls.append(("batch_set", list(keys)))
        outcomes = []
        for index, (key, page) in enumerate(zip(keys, pages, strict=True)):
            if key in self.pages:
                outcomes.append(Outcome.EXISTS)
                continue
            if key not in self.silent:
                ctx.seal_page(index)
            self.pages[key] = b"".join(page)
            outcomes.append(Outcome.STORED)
        return outcomes


class HostPool:
    """A host pool of `count` pages in `regions` pieces each, in one numpy array."""

    layout = "page_first"
    page_size = 16

    def __init__(self, name: PoolName, count: int, regions: int = 2) -> None:
        self.name = name
        self.memory = np.zeros((count, regions, PAGE // regions), np.uint8)
        self.owner: object = self.memory

    def regions(self, slots: Slots) -> tuple[Any, Any]:
        base = self.memory.ctypes.data
        count, size = self.memory.shape[1:]
        starts = base + slots[:, None] * count * size + np.arange(count)[None, :] * size
        return starts.astype(np.int64), np.full((len(slots), count), size, np.int64)

    def pages(self, slots: Slots) -> list[list[memoryview]]:
        return [[memoryview(region) for region in self.memory[slot]] for slot in slots.tolist()]

    def fill(self, slot: int, data: bytes) -> None:
        self.memory[slot] = np.frombuffer(data, np.uint8).reshape(self.memory.shape[1:])

    def read(self, slot: int) -> bytes:
        return self.memory[slot].tobytes()


class Kit:
    """What the tests of this folder share."""

    Plain, Paged, Stalling, HostPool = Plain, Paged, Stalling, HostPool
    bound, page_bytes = BOUND, PAGE

    def __init__(self) -> None:
        self.opened: list[StorageSession] = []
        self.releases: list[threading.Event] = []

    identity = Identity("model", "declared:w", "float16", 16, "mha", layer_num=2, head_num=2, head_dim=2)

    def until(self, there: Callable[[], object]) -> None:
        """Wait for what announces itself by no event; fails after `bound` seconds."""
        pause, end = threading.Event(), time.monotonic() + self.bound
        while not there():
            assert time.monotonic() < end, "it never came to that"
            pause.wait(0.001)

    def hashes(self, count: int, start: int = 0) -> list[str]:
        return [hashlib.sha256(f"page {i}".encode()).hexdigest() for i in range(start, start + count)]

    def data(self, count: int, start: int = 0) -> list[bytes]:
        """Bytes of pages, told apart and without a run of equal ones."""
        return [hashlib.shake_128(f"data {i}".encode()).digest(PAGE) for i in range(start, start + count)]

    def sources(self, count: int, start: int = 0) -> list[list[bytes]]:
        return [[data[:100], data[100:]] for data in self.data(count, start)]

    def rooms(self, count: int) -> list[list[bytearray]]:
        return [[bytearray(b"\xaa" * 100), bytearray(b"\xaa" * (PAGE - 100))] for _ in range(count)]

    def bytes_of(self, room: Sequence[Any]) -> bytes:
        return b"".join(bytes(part) for part in room)

    def choice(self, backend: object, capabilities: Capabilities | None = None, name: str = "test") -> BackendChoice:
        spec = BackendSpec(name, "a backend of the tests", NoOptions, lambda options, ctx: backend)
        if capabilities is not None:
            spec = BackendSpec(name, spec.description, NoOptions, spec.factory, capabilities)
        return BackendChoice(spec, NoOptions(), "test")

    def open(self, backend: object, capabilities: Capabilities | None = None, **more: Any) -> StorageSession:
        if isinstance(backend, Stalling):
            self.releases.append(backend.release)
        more.setdefault("identity", self.identity)
        session = open_session(self.choice(backend, capabilities), **more)
        self.opened.append(session)
        return session

    def memory(self, **more: Any) -> tuple[StorageSession, MemoryStore]:
        store = MemoryStore()
        return self.open(MemoryBackend(store, None), CAPABILITIES, **more), store


@pytest.fixture
def kit() -> Iterator[Kit]:
    made = Kit()
    yield made
    for release in made.releases:
        release.set()
    for session in made.opened:
        assert session.close(BOUND).abandoned == 0


@pytest.fixture
def spoil() -> Callable[[dict[str, Any], str], None]:
    """Turn over one bit in the middle of a stored page of Plain or MemoryStore."""

    def turn(pages: dict[str, Any], key: str) -> None:
        found = pages[key]
        data = bytearray(found[0] if isinstance(found, tuple) else found)
        data[len(data) // 2] ^= 1
        pages[key] = (bytes(data), found[1]) if isinstance(found, tuple) else bytes(data)

    return turn
