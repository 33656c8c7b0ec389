"""A real Mooncake store for the whole run, and backends opened on it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hicache_mooncake.backend import MooncakeBackend
from hicache_mooncake.dev_server import make_server
from hicache_mooncake.opening import open_mooncake
from hicache_mooncake.options import MooncakeOptions
from hicache_mooncake.sdk import load_sdk

from hicache_core.errors import MissingDependencyError
from hicache_core.plugin.dev_servers import DevServer
from hicache_core.types import IoContext, OpenContext, Outcome

NAMESPACE = "0123456789abcdef" * 2
CTX = OpenContext(namespace=NAMESPACE)


class Handle:
    """A backend and short ways to use it. Pages are a seal of 64 bytes and two regions."""

    _numbers = iter(range(10**9))

    def __init__(self, backend: MooncakeBackend) -> None:
        self.backend = backend

    @classmethod
    def keys(cls, count: int, namespace: str = NAMESPACE) -> list[str]:
        """Keys that no other test uses."""
        return [f"{namespace}/{next(cls._numbers):064x}.kv.l0-30h0-3" for _ in range(count)]

    @staticmethod
    def page(fill: int, size: int = 4096) -> list[memoryview]:
        data = np.full(64 + size, fill, np.uint8)
        half = 64 + size // 2
        return [data.data[:64], data.data[64:half], data.data[half:]]

    def set(self, keys: list[str], fill: int = 1, size: int = 4096, **ctx: Any) -> list[Outcome]:
        return self.backend.batch_set(keys, [self.page(fill, size) for _ in keys], IoContext(**ctx))

    def get(self, key: str, size: int = 4096) -> tuple[Outcome, set[int]]:
        """The outcome, and which byte values the page then has."""
        page = self.page(0xAA, size)
        [outcome] = self.backend.batch_get([key], [page], IoContext())
        return outcome, set(b"".join(page))

    def there(self, keys: list[str]) -> list[bool]:
        return self.backend.batch_contains(keys, IoContext())


def sdk() -> Any:
    try:
        return load_sdk()
    except MissingDependencyError as error:
        pytest.skip(str(error))  # which says how to install it


@pytest.fixture(scope="session")
def store() -> Iterator[DevServer]:
    """A master and an owner process."""
    sdk()
    with tempfile.TemporaryDirectory() as place, make_server(Path(place), segment_bytes=512 << 20) as server:
        yield server


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., DevServer]]:
    """Starts a store of the test's own."""
    sdk()
    started: list[DevServer] = []

    def make(**how: Any) -> DevServer:
        server = make_server(tmp_path / f"server{len(started)}", **how)
        server.start()
        started.append(server)
        return server

    yield make
    for server in started:
        server.kill()


@pytest.fixture
def connect(store: DevServer) -> Iterator[Callable[..., Handle]]:
    """Opens a backend on the common store, or with other options on another."""
    opened: list[MooncakeBackend] = []

    def make(**options: Any) -> Handle:
        backend = open_mooncake(MooncakeOptions(**{**store.options, **options}), CTX)
        opened.append(backend)
        return Handle(backend)

    yield make
    for backend in opened:
        backend.close()
