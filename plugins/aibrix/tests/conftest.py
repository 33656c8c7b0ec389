"""Fixtures: a store on each connector that runs here. Without AIBrix all of it is skipped, with the install line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hicache_aibrix.options import INSTALL

from hicache_core.plugin.select import choose_backend, open_backend
from hicache_core.types import OpenContext

Open = Callable[..., Any]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if find_spec("aibrix_kvcache") is None:
        for item in items:
            if Path(__file__).parent in item.path.parents:
                item.add_marker(pytest.mark.skip(reason=INSTALL))


@pytest.fixture(params=["shfs", "rocksdb"])
def options(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """Options of a fresh store, on either connector."""
    return {"root": str(tmp_path / "store"), "connector": request.param}


@pytest.fixture
def opened() -> Iterator[Open]:
    """Opens backends, past the core, and closes them."""
    backends: list[Any] = []

    def open_(options: dict[str, Any], **context: Any) -> Any:
        backends.append(open_backend(choose_backend("aibrix", options), OpenContext("0" * 32, **context)))
        return backends[-1]

    yield open_
    for backend in backends:
        backend.close()
