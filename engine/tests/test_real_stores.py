"""The demo on stores with a real server, and an engine whose store's server is killed under it."""

from __future__ import annotations

import time

import pytest
from hicache_engine import outage
from hicache_engine.demo import Demo
from hicache_engine.flags import engine_options
from hicache_engine.outage import Outage

from hicache_core.errors import DevServerError, PluginError, UnknownNameError
from hicache_core.plugin.dev_servers import make_dev_server

STORES = ("s3", "mooncake")


@pytest.fixture(params=STORES)
def store(request, tmp_path_factory):
    try:
        make_dev_server(request.param, tmp_path_factory.mktemp("asked"))
    except (UnknownNameError, PluginError, DevServerError) as error:
        pytest.skip(str(error))
    return request.param


def options():
    given = {"page_size": 64, "hicache_storage_prefetch_policy": "wait_complete"}
    return engine_options(given, model="random")


def test_the_demo_plays_on_a_real_server(store, tmp_path):
    report = Demo(tmp_path, options(), rounds=1, min_ratio=0.0, say=lambda step: None, backend=store).run()
    assert [f"{c.name}: {c.detail}" for c in report["checks"] if not c.passed] == []
    assert report["backend"] == store


def test_a_store_that_dies_and_comes_back_is_used_again(store, tmp_path):
    """How long a first token takes is measured by `hicache-engine outage`, not here."""
    report = Outage(tmp_path, options(), store, down=2.0, patience=120.0, say=lambda step: None).run()
    broken = [name for name, ok in report["checks"].items() if not ok and "first token" not in name]
    assert broken == []
    assert {turn.phase for turn in report["turns"]} == {"before", "down", "after"}


def test_hits_before_the_server_is_known_to_be_ready_count(tmp_path, monkeypatch):
    try:
        make_dev_server("s3", tmp_path / "asked")
    except (UnknownNameError, PluginError, DevServerError) as error:
        pytest.skip(str(error))

    class TellsLate(outage._Restart):
        def finish(self):
            super().finish()
            self.at = time.monotonic()

    monkeypatch.setattr(outage, "_Restart", TellsLate)
    report = Outage(tmp_path, options(), "s3", down=0.1, patience=120.0, say=lambda step: None).run()
    assert report["seconds_to_first_hit"] == 0.0


def test_a_store_without_a_server_is_refused_by_name(tmp_path):
    with pytest.raises(UnknownNameError, match="dev server 'nfs'"):
        Outage(tmp_path, options(), "nfs", down=1.0, patience=1.0, say=print).run()
