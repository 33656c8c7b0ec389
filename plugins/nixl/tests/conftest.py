"""Pages, backends, and an S3 server for plugin OBJ."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hicache_core.errors import DevServerError, PluginError, UnknownNameError
from hicache_core.plugin.dev_servers import DevServer, make_dev_server
from hicache_core.plugin.select import choose_backend, open_backend
from hicache_core.types import OpenContext

pytest.importorskip("nixl", reason="pip install --no-deps nixl-cu12==1.5.1 nixl==1.5.1")

SPACE = "0" * 32


@pytest.fixture
def keys() -> list[str]:
    return [f"{SPACE}/{number:064x}.kv.l0-1h0-1" for number in range(8)]


@pytest.fixture
def opened() -> Iterator[Callable[..., Any]]:
    """opened(**options) -> a backend, closed at the end."""
    backends: list[Any] = []

    def build(**options: Any) -> Any:
        backends.append(open_backend(choose_backend("nixl", options), OpenContext(SPACE)))
        return backends[-1]

    yield build
    for backend in backends:
        backend.close()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevServer]:
    """A real S3 server."""
    try:
        made = make_dev_server("s3", tmp_path_factory.mktemp("s3"))
    except (UnknownNameError, PluginError, DevServerError) as error:
        pytest.skip(f"plugin OBJ is tested on a real S3 server: {error}")
    with made as running:
        yield running


@pytest.fixture
def bucket(server: DevServer, tmp_path: Path) -> dict[str, Any]:
    """Options of plugin OBJ, with a prefix of the test's own."""
    given = server.options
    return {
        "plugin": "OBJ",
        "bucket": "kvcache",
        "endpoint": given["endpoint"],
        "access_key_id": given["access_key_id"],
        "secret_access_key": given["secret_access_key"],
        "prefix": f"{tmp_path.name}/",
        "bounce_size": 8 << 20,
        "agents": 2,
    }
