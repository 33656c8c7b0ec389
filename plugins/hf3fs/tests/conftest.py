"""Stores in temporary directories, on each way of running them, and pages to put in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hicache_hf3fs.backend import Hf3fsBackend, open_hf3fs
from hicache_hf3fs.dev_server import dev_server
from hicache_hf3fs.emulator import World, emulated_3fs
from hicache_hf3fs.options import Hf3fsOptions

from hicache_core.plugin.dev_servers import DevServer
from hicache_core.types import IoContext, OpenContext, Outcome

NAMESPACE = "0123456789abcdef" * 2
CTX = OpenContext(namespace=NAMESPACE)


class Handle:
    """A backend and short ways to use it."""

    def __init__(self, backend: Hf3fsBackend, root: Path) -> None:
        self.backend, self.root = backend, root

    @property
    def totals(self) -> Any:
        return self.backend.stats()

    @staticmethod
    def key(number: int, namespace: str = NAMESPACE) -> str:
        return f"{namespace}/{number:064x}.kv.l0-30h0-3"

    def set(self, *keys: str, value: bytes = b"v" * 1000, replace: bool = False) -> list[Outcome]:
        page = [memoryview(b"s" * 64), memoryview(value)]
        return self.backend.batch_set(list(keys), [page] * len(keys), IoContext(replace=replace))

    def get(self, key: str, nbytes: int = 1000) -> tuple[Outcome, bytes]:
        seal, value = bytearray(64), bytearray(nbytes)
        [outcome] = self.backend.batch_get([key], [[memoryview(seal), memoryview(value)]], IoContext())
        return outcome, bytes(value)

    def exists(self, *keys: str) -> int:
        return self.backend.batch_exists(list(keys), IoContext())

    def delete(self, *keys: str) -> list[Outcome]:
        return self.backend.delete(list(keys), IoContext())

    def stored(self, namespace: str | None = None) -> list[str]:
        found: list[str] = []
        cursor: str | None = None
        while True:
            entries, cursor = self.backend.scan(namespace, cursor)
            found += [key for key, _, _ in entries]
            if cursor is None:
                return found

    def numbers(self) -> list[int]:
        return sorted(int(key.partition("/")[2].partition(".")[0], 16) for key in self.stored())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def opened() -> Iterator[Callable[..., Handle]]:
    """Opens a store with these options, as often as one likes; closes all at the end."""
    backends: list[Hf3fsBackend] = []

    def make(**options: Any) -> Handle:
        backend = open_hf3fs(Hf3fsOptions(**options), CTX)
        backends.append(backend)
        return Handle(backend, Path(options["root"]))

    yield make
    for backend in backends:
        backend.close()


@pytest.fixture
def open_store(opened: Callable[..., Handle], root: Path) -> Callable[..., Handle]:
    """Opens the store on the mounted path with its embedded index."""
    return lambda **options: opened(**{"root": str(root), "io": "posix", **options})


@pytest.fixture
def store(open_store: Callable[..., Handle]) -> Handle:
    return open_store()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[DevServer]:
    """A metadata service in a process of its own."""
    server = dev_server(tmp_path / "service")
    with server:
        yield server


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """The emulator of 3FS's SDK, its mount at tmp_path/mount."""
    with emulated_3fs(tmp_path / "mount", seed=7) as emulated:
        yield emulated


@pytest.fixture
def emulated_options(world: World, tmp_path: Path) -> dict[str, Any]:
    """Options of a store on the emulated mount."""
    return {"root": str(world.mount / "store"), "index_dir": str(tmp_path / "index"), "io": "usrbio"}


@pytest.fixture(params=["posix", "service", "usrbio"])
def any_store(request: pytest.FixtureRequest, opened: Callable[..., Handle], root: Path) -> Handle:
    """A store on each way of running one."""
    if request.param == "posix":
        return opened(root=str(root), io="posix")
    if request.param == "service":
        return opened(**request.getfixturevalue("service").options)
    return opened(**request.getfixturevalue("emulated_options"))
