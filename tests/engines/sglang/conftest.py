"""A real SGLang for these tests, where there is one, and stores to put behind it."""

from __future__ import annotations

import importlib.util
import itertools
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hicache_core.errors import HiCacheError
from hicache_core.plugin.dev_servers import DevServer, dev_server_names, make_dev_server
from hicache_core.plugin.discovery import discover

SET_UP = "SGLang is not importable here: tools/peers/sglang.sh; . .peers/sglang/env.sh; $PEER_PY -m pytest {}"
STORES = ("file", "mooncake", "s3")
BOUND = 60.0


def pytest_configure(config: pytest.Config) -> None:
    """SGLang and what it imports warn of many things, when imported and later; that is not ours to mend."""
    for module in ("sglang", "torch", "transformers", "triton", "tvm_ffi", "pydantic", "importlib"):
        config.addinivalue_line("filterwarnings", f"ignore:::{module}")


@pytest.fixture(scope="session")
def sglang() -> str:
    """The version of SGLang; the test is skipped where it cannot be imported."""
    if importlib.util.find_spec("sglang") is None:
        pytest.skip(SET_UP.format("tests/engines/sglang"))
    from hicache_core.plugin.engines import find_engine

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import sglang.srt.mem_cache.hicache_storage  # noqa: F401 - the first import is the slow and loud one
    found = find_engine("sglang")
    assert found is not None
    return found.version


@pytest.fixture(scope="session")
def stack(sglang: str, load_module: Callable[[Path], ModuleType]) -> ModuleType:
    """The module `stack`: SGLang's tree, controller and pools on a CPU. For the newest version only."""
    if not sglang.startswith("0.5.23"):
        pytest.skip(f"the controllers of SGLang {sglang} are not run here, only their storage interface")
    return load_module(Path(__file__).with_name("stack.py"))


@pytest.fixture(scope="session")
def pools(sglang: str, load_module: Callable[[Path], ModuleType]) -> ModuleType:
    """The module `bare_pools`: SGLang's host pool classes over plain memory."""
    return load_module(Path(__file__).with_name("bare_pools.py"))


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], DevServer]]:
    """A throwaway real server by its store's name, started once; the test is skipped where it cannot be."""
    started: dict[str, DevServer] = {}
    with ExitStack() as running:

        def server(name: str) -> DevServer:
            if name not in started:
                if name not in discover().specs or name not in dev_server_names():
                    pytest.skip(f"backend {name} or its dev server is not installed: pip install hicache-{name}")
                try:
                    made = make_dev_server(name, tmp_path_factory.mktemp(name))
                    started[name] = running.enter_context(made)
                except HiCacheError as error:
                    pytest.skip(f"no server for {name}: {error}")
            return started[name]

        yield server


@pytest.fixture
def store(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    servers: Callable[[str], DevServer],
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., dict[str, Any]]:
    """Makes what stands under `hicache`: parameter: a store's name, `file` without one."""
    name = getattr(request, "param", "file")
    weights = f"declared:{request.node.name[:60]}-{next(_numbers)}"

    def make(**more: Any) -> dict[str, Any]:
        if name == "file":
            chosen: dict[str, Any] = {"backend": "file", "options": {"root": str(tmp_path / "store")}}
        else:
            server = servers(name)
            for key, value in server.environment.items():
                monkeypatch.setenv(key, value)
            chosen = {"backend": server.backend, "options": dict(server.options)}
        return {**chosen, "model": "test/model", "weights": weights, **more}

    return make


_numbers = itertools.count()


@pytest.fixture
def engine(stack: ModuleType) -> Iterator[Callable[..., Any]]:
    """Makes engines, and closes what the test has not closed."""
    made: list[Any] = []

    def make(hicache: dict[str, Any], **more: Any) -> Any:
        made.append(stack.Engine(hicache, **more))
        return made[-1]

    yield make
    for one in made:
        if one.controller.storage_backend is not None:
            one.close()
