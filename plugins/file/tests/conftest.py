"""A store in a temporary directory, and pages to put in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hicache_file.backend import FileBackend, open_file
from hicache_file.names import relative_path
from hicache_file.options import FileOptions

from hicache_core.types import IoContext, OpenContext, Outcome

NAMESPACE = "0123456789abcdef" * 2
CTX = OpenContext(namespace=NAMESPACE)


class Handle:
    """A backend and short ways to use it."""

    def __init__(self, backend: FileBackend, root: Path) -> None:
        self.backend, self.root = backend, root

    @staticmethod
    def key(number: int, namespace: str = NAMESPACE) -> str:
        return f"{namespace}/{number:064x}.kv.l0-30h0-3"

    def path(self, key: str) -> Path:
        return self.root / relative_path(key)

    def set(self, *keys: str, value: bytes = b"v" * 1000, replace: bool = False) -> list[Outcome]:
        page = [memoryview(b"s" * 64), memoryview(value)]
        return self.backend.batch_set(list(keys), [page] * len(keys), IoContext(replace=replace))

    def get(self, key: str, nbytes: int = 1000) -> tuple[Outcome, bytes]:
        seal, value = bytearray(64), bytearray(nbytes)
        [outcome] = self.backend.batch_get([key], [[memoryview(seal), memoryview(value)]], IoContext())
        return outcome, bytes(value)

    def delete(self, *keys: str) -> list[Outcome]:
        return self.backend.delete(list(keys), IoContext())

    def files(self) -> list[Path]:
        """Every regular file under the root but our records."""
        return sorted(p for p in self.root.rglob("*") if p.is_file() and "+hicache" not in p.parts)

    def stored(self) -> list[str]:
        found: list[str] = []
        cursor: str | None = None
        while True:
            entries, cursor = self.backend.scan(None, cursor)
            found += [key for key, _, _ in entries]
            if cursor is None:
                return found

    def allocated(self) -> int:
        """What `du` would say of the page files."""
        return sum(path.lstat().st_blocks * 512 for path in self.files())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def open_store(root: Path) -> Iterator[Callable[..., Handle]]:
    """Opens the store, as often as one likes; closes all at the end."""
    opened: list[FileBackend] = []

    def make(**options: Any) -> Handle:
        options.setdefault("root", str(root))
        backend = open_file(FileOptions(**options), CTX)
        opened.append(backend)
        return Handle(backend, Path(options["root"]))

    yield make
    for backend in opened:
        backend.close()


@pytest.fixture
def store(open_store: Callable[..., Handle]) -> Handle:
    return open_store()
