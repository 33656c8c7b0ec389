"""A real S3 server for the session, a store of its own for each test, and pages to put in it."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hicache_s3.backend import S3Backend, open_s3
from hicache_s3.dev_server import INSTALL, dev_server, find_weed
from hicache_s3.options import S3Options

from hicache_core.plugin.dev_servers import DevServer
from hicache_core.types import IoContext, OpenContext, Outcome

sys.path.insert(0, str(Path(__file__).parent))  # pytest's importlib mode does not
from s3_stand_in import StandIn

NAMESPACE = "0123456789abcdef" * 2
CTX = OpenContext(namespace=NAMESPACE)


class Handle:
    """A backend and short ways to use it."""

    def __init__(self, backend: S3Backend, options: S3Options) -> None:
        self.backend, self.options = backend, options

    @staticmethod
    def key(number: int, namespace: str = NAMESPACE) -> str:
        return f"{namespace}/{number:064x}.kv.l0-30h0-3"

    def set(self, *keys: str, value: bytes = b"v" * 1000, replace: bool = False, **more: Any) -> list[Outcome]:
        page = [memoryview(b"s" * 64), memoryview(value)]
        return self.backend.batch_set(list(keys), [page] * len(keys), IoContext(replace=replace, **more))

    def get(self, key: str, nbytes: int = 1000, **more: Any) -> tuple[Outcome, bytes]:
        seal, value = bytearray(64), bytearray(nbytes)
        [outcome] = self.backend.batch_get([key], [[memoryview(seal), memoryview(value)]], IoContext(**more))
        return outcome, bytes(value)

    def exists(self, *keys: str, **more: Any) -> int:
        return self.backend.batch_exists(list(keys), IoContext(**more))

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


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevServer]:
    """SeaweedFS, for all tests that do not harm it."""
    if find_weed() is None:
        pytest.skip(f"no S3 server here: {INSTALL}")
    made = dev_server(tmp_path_factory.mktemp("seaweedfs"))
    made.start()
    yield made
    made.kill()


@pytest.fixture
def place(server: DevServer) -> dict[str, Any]:
    """Options of a store that no other test uses."""
    return {**server.options, "url": f"{server.options['url']}/{uuid.uuid4().hex}"}


@pytest.fixture
def open_at() -> Iterator[Callable[..., Handle]]:
    """Opens stores; closes all at the end."""
    opened: list[S3Backend] = []

    def make(**options: Any) -> Handle:
        struct = S3Options(**{"timeout": 60.0, "open_timeout": 60.0, **options})  # a busy machine is no failure
        opened.append(open_s3(struct, CTX))
        return Handle(opened[-1], struct)

    yield make
    for backend in opened:
        backend.close()


@pytest.fixture
def open_store(open_at: Callable[..., Handle], place: dict[str, Any]) -> Callable[..., Handle]:
    """Opens the same store on SeaweedFS, as often as one likes."""
    return lambda **options: open_at(**{**place, **options})


@pytest.fixture
def store(open_store: Callable[..., Handle]) -> Handle:
    return open_store()


@pytest.fixture(params=["s3", "file", "memory"])
def any_store(request: pytest.FixtureRequest, open_at: Callable[..., Handle], tmp_path: Path) -> Handle:
    """One after the other: SeaweedFS by obstore, a directory and memory by fsspec."""
    if request.param == "s3":
        return open_at(**request.getfixturevalue("place"))
    if request.param == "file":
        return open_at(url=f"file://{tmp_path}/store")
    return open_at(url=f"memory://{uuid.uuid4().hex}/store")


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    """A server in this process that can be told to misbehave."""
    with StandIn() as made:
        yield made
