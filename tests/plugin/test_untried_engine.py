"""The warning of a door in an engine of another version: once, on the door's own logger, with what to watch for."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from hicache_core.adapters import untried
from hicache_core.adapters.untried import warn_of_untried_version
from hicache_core.plugin.engines import DOORS, FoundEngine


@pytest.fixture(autouse=True)
def nothing_was_warned_of() -> Iterator[None]:
    warn_of_untried_version.cache_clear()
    yield
    warn_of_untried_version.cache_clear()


@pytest.mark.parametrize(
    ("package", "watch"), [("sglang", "docs/guides/sglang.md"), ("vllm", "tier jobs"), ("lmcache", "L2 tasks")]
)
def test_one_warning_that_ends_with_what_to_watch_for(
    package: str, watch: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(untried, "find_engine", lambda name: FoundEngine(DOORS[name], "99.0"))
    warn_of_untried_version(package)
    warn_of_untried_version(package)
    (record,) = caplog.records
    assert (record.name, record.levelno) == (f"hicache_core.adapters.{package}", logging.WARNING)
    assert f"{package} 99.0" in record.message
    assert record.message.endswith(watch)


def test_what_the_engine_says_of_itself_comes_before_its_distribution(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(untried, "find_engine", lambda name: FoundEngine(DOORS[name], "99.0"))
    warn_of_untried_version("vllm", DOORS["vllm"].tried[0])
    assert not caplog.records
    warn_of_untried_version("vllm", "98.0")
    assert "vllm 98.0" in caplog.text


def test_no_engine_no_warning(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(untried, "find_engine", lambda name: None)
    warn_of_untried_version("lmcache")
    assert not caplog.records
