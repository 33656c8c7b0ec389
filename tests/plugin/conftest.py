"""Fake distributions: a directory on sys.path with a module and a .dist-info that names it."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from hicache_core.plugin import discovery

Install = Callable[..., str]
_numbers = itertools.count()


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """install(distribution, {backend name: source}) puts a fake distribution on sys.path.

    `{name}` in a source becomes the backend's name.
    """
    modules: list[str] = []
    monkeypatch.delenv(discovery.DISABLE_VARIABLE, raising=False)

    def put(distribution: str, backends: dict[str, str], *, version: str = "1.0", attribute: str = "") -> str:
        folder = tmp_path / distribution
        info = folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
        lines = ["[hicache.backends]"]
        for name, source in backends.items():
            module = f"fake_plugin_{next(_numbers)}"
            modules.append(module)
            (folder / f"{module}.py").write_text(dedent(source).replace("{name}", name))
            lines.append(f"{name} = {module}{attribute}")
        (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
        monkeypatch.syspath_prepend(str(folder))
        discovery.clear_cache()
        return modules[-1]

    yield put
    for module in modules:
        sys.modules.pop(module, None)
    discovery.clear_cache()
