"""The same adapter over every store of which a throwaway server can be started here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hicache_core.errors import HiCacheError
from hicache_core.plugin.dev_servers import DevServer, dev_server_names, make_dev_server

STORES = ("mooncake", "s3")


@pytest.fixture(scope="module", params=STORES)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevServer]:
    if request.param not in dev_server_names():
        pytest.skip(f"hicache-{request.param} is not installed here: tools/peers/lmcache.sh installs every plugin")
    try:
        made = make_dev_server(request.param, tmp_path_factory.mktemp(request.param))
    except HiCacheError as error:
        pytest.skip(f"no server of {request.param} can be started here: {error}")
    with pytest.MonkeyPatch.context() as patch, made:
        for name, value in made.environment.items():
            patch.setenv(name, value)
        yield made


def test_objects_come_back_and_a_restart_finds_them(
    server: DevServer, start: Callable[..., Any], harness: Any, tmp_path: Path
) -> None:
    params = harness.file_params(tmp_path) | {"backend": server.backend, "options": server.options, "timeout": 30.0}
    keys = [harness.key_of(i) for i in range(6)]
    first = start(params)
    first.store(keys)
    assert first.failed_stores == 0
    assert first.comes_back([*keys, harness.key_of(99)]) == 6
    first.close()
    assert start(params).comes_back(keys) == 6
