"""Which engines doctor finds, and what it says of versions that no door was run against."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

import pytest

from hicache_core.plugin import engines
from hicache_core.plugin.engines import DOORS, examine_engines, find_engine


@pytest.fixture
def on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The package `sglang`, empty, on the path without metadata."""

    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(engines.importlib.metadata, "version", missing)
    package = tmp_path / "sglang"
    package.mkdir()
    (package / "__init__.py").write_text("raise AssertionError('doctor imported the engine')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return package


@pytest.mark.parametrize("name", ["_version.py", "version.py"])
def test_an_engine_on_the_path_is_found_with_its_version(on_the_path: Path, name: str) -> None:
    (on_the_path / name).write_text("TYPE_CHECKING = False\n__version__ = version = '0.5.23'\n")
    found = find_engine("sglang")
    assert found is not None
    assert (found.version, found.untried) == ("0.5.23", "")
    assert "sglang" not in sys.modules
    (finding,) = [f for f in examine_engines() if f.subject == "engine sglang"]
    assert finding.level == "ok"
    assert "hicache_core.adapters.sglang:HiCacheDynamicStorage" in finding.message


@pytest.mark.parametrize(("text", "said"), [("version = '0.6.0'\n", "sglang 0.6.0"), ("", "this version of sglang")])
def test_a_version_that_was_never_tried_is_a_warning_that_names_those_that_were(
    on_the_path: Path, text: str, said: str
) -> None:
    (on_the_path / "version.py").write_text(text)
    (finding,) = [f for f in examine_engines() if f.subject == "engine sglang"]
    assert finding.level == "warn"
    assert said in finding.message
    for version in DOORS["sglang"].tried:
        assert version in finding.message


def test_metadata_says_the_version_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines.importlib.metadata, "version", lambda _: "0.5.12")
    found = find_engine("sglang")
    assert found is not None
    assert found.version == "0.5.12"


def test_an_engine_that_is_not_there_is_not_mentioned(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(engines.importlib.metadata, "version", missing)
    monkeypatch.setattr(engines.importlib.util, "find_spec", lambda _: None)
    assert find_engine("sglang") is None
    assert examine_engines() == []


def test_every_guide_is_there() -> None:
    root = Path(__file__).parents[2]
    assert [door.guide for door in DOORS.values() if not (root / door.guide).is_file()] == []
