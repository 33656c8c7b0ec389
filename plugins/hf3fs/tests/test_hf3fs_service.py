"""The metadata service: who may ask, what happens when it dies, and what it does with clients that die."""

import http.client
import os
import re
import subprocess
import sys
import threading
import time
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from hicache_hf3fs.backend import open_hf3fs
from hicache_hf3fs.client import RemoteIndex
from hicache_hf3fs.index.interface import EXISTS, FULL, Placed
from hicache_hf3fs.index.owners import Terms
from hicache_hf3fs.index.sqlite_index import SqliteIndex
from hicache_hf3fs.main import main
from hicache_hf3fs.options import Hf3fsOptions
from hicache_hf3fs.root import open_private
from hicache_hf3fs.service import MetadataService
from hicache_hf3fs.wire import ANSWERS, ARGUMENTS

from hicache_core.errors import OpenError, OptionError, StorageError
from hicache_core.namespace import Identity
from hicache_core.plugin.dev_servers import free_ports, make_dev_server
from hicache_core.storage import SessionSettings, open_session
from hicache_core.types import OpenContext, Outcome

CTX = OpenContext(namespace="0" * 32)
HIT, MISS, STORED = Outcome.HIT, Outcome.MISS, Outcome.STORED


def refused(error=OpenError, **options):
    with pytest.raises(error) as caught:
        open_hf3fs(Hf3fsOptions(**options), CTX)
    return str(caught.value)


def post(service, path, body=b"", **headers):
    port = int(service.options["metadata_url"].rpartition(":")[2])
    headers = {"Authorization": f"Bearer {service.options['metadata_token']}", **headers}
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        connection.request("POST", path, body, headers)
        response = connection.getresponse()
        return response.status, response.read()


def test_every_method_has_arguments_and_an_answer():
    assert ARGUMENTS.keys() == ANSWERS.keys()


def test_the_token_is_asked_for(service):
    options = service.options
    assert "401" in refused(**{**options, "metadata_token": "wrong"})
    message = refused(**{**options, "metadata_token": None})
    assert "token" in message
    assert options["metadata_token"] not in message
    assert post(service, "/v1/totals", b"\x90", Authorization="Bearer ")[0] == 401


def test_requests_that_are_none_are_refused_and_the_service_goes_on(service, opened):
    assert post(service, "/v1/nothing", b"\x90")[0] == 404
    assert post(service, "/elsewhere", b"\x90")[0] == 404
    assert post(service, "/v1/lookup", b"garbage")[0] == 400
    assert post(service, "/v1/lookup", b"\x91\xa1x")[0] == 400
    assert post(service, "/v1/reserve", b"\x90")[0] == 400
    assert post(service, "/v1/lookup", b"", **{"Content-Length": "99999999999"})[0] == 413
    store = opened(**service.options)
    assert store.set(store.key(1)) == [STORED]


def test_a_service_that_is_killed_costs_misses_until_it_is_back(service, opened):
    store = opened(**service.options)
    keys = [store.key(n) for n in range(20)]
    assert store.set(*keys) == [STORED] * 20
    service.kill()
    with pytest.raises(Exception, match="cannot be reached"):
        store.get(keys[0])
    with pytest.raises(Exception, match="cannot be reached"):
        store.set(store.key(50))
    with pytest.raises(Exception, match="cannot be reached"):
        store.exists(*keys)
    service.restart()
    assert store.exists(*keys) == 20
    assert store.get(keys[7]) == (HIT, b"v" * 1000)
    assert store.set(store.key(50)) == [STORED]


def test_a_session_rides_out_a_killed_service(service):
    identity = Identity(
        model="m", weights="declared:m", dtype="float16", page_size=16, kind="mha", layer_num=1, head_num=1,
        head_dim=8, layout="page_first",
    )  # fmt: skip
    settings = SessionSettings(timeout=2.0)
    with closing(open_session("hf3fs", identity=identity, options=service.options, settings=settings)) as session:
        hashes = [f"{n:064x}" for n in range(4)]
        pages = [[memoryview(bytearray(1000))] for _ in hashes]
        assert all(session.set(hashes, pages))
        service.kill()
        assert session.exists(hashes) == 0
        assert session.get(hashes, pages) == [Outcome.UNAVAILABLE] * 4
        service.restart()
        until = time.monotonic() + 60
        pause = threading.Event()
        while session.exists(hashes) != 4 and time.monotonic() < until:
            pause.wait(0.1)  # the breaker lets a probe through after a second or more
        assert session.get(hashes, pages) == [HIT] * 4


def test_a_service_killed_while_pages_are_set_loses_none_that_was_acknowledged(service, opened):
    store = opened(**service.options)
    acknowledged, started = [], threading.Event()

    def write():
        for n in range(10_000):
            try:
                if store.set(store.key(n)) == [STORED]:
                    acknowledged.append(n)
            except StorageError:
                return
            if n == 30:
                started.set()

    thread = threading.Thread(target=write)
    thread.start()
    assert started.wait(60)
    service.kill()
    thread.join(60)
    service.restart()
    assert len(acknowledged) > 20
    assert store.exists(*[store.key(n) for n in acknowledged]) == len(acknowledged)
    assert all(store.get(store.key(n)) == (HIT, b"v" * 1000) for n in acknowledged)


@pytest.fixture
def timed(tmp_path):
    """An index as the service has it, with reservations that run out at once."""
    index = SqliteIndex(open_private("--root", str(tmp_path / "timed")), max_size=4 * 4096, terms=True)
    index._owner = Terms(seconds=0.0, grace=-1.0)
    yield index
    index.close()


def reserve(index, *keys, owner="a"):
    return index.reserve(list(keys), [4096] * len(keys), replace=False, may_hollow=True, owner=owner)


def commit(index, key, slot, owner="a", replace=False):
    return index.commit([Placed(key, 4096, slot, 100)], [], replace=replace, owner=owner)


def test_what_clients_that_died_had_reserved_runs_out(timed):
    assert reserve(timed, "n/1", "n/2", "n/3", "n/4").slots == [0, 1, 2, 3]
    assert reserve(timed, "n/5", "n/6", owner="b").slots == [0, 1]
    assert commit(timed, "n/5", 0, owner="b") == [0]


def test_whoever_comes_too_late_publishes_nothing(timed):
    [slot] = reserve(timed, "n/1").slots
    assert reserve(timed, "n/2", "n/3", "n/4", "n/5", owner="b").slots[0] == slot
    assert commit(timed, "n/1", slot) == [FULL]
    assert timed.lookup(["n/1"]).rows == [None]
    assert commit(timed, "n/2", slot, owner="b") == [0]
    assert commit(timed, "n/1", slot) == [FULL]


def test_a_commit_whose_answer_was_lost_may_be_sent_again(timed):
    [slot] = reserve(timed, "n/1").slots
    assert commit(timed, "n/1", slot) == [0]
    assert commit(timed, "n/1", slot) == [0]
    assert commit(timed, "n/1", slot, replace=True) == [0]
    [other] = reserve(timed, "n/2").slots
    assert commit(timed, "n/1", other) == [EXISTS]
    assert timed.totals().pages == 1


def test_a_page_is_not_written_beyond_the_term(service, opened, monkeypatch):
    store = opened(**service.options)
    index = store.backend._store.index
    real = index.reserve

    def late(*arguments, **keywords):
        return real(*arguments, **keywords)._replace(seconds=-1.0)

    monkeypatch.setattr(index, "reserve", late)
    assert store.set(store.key(1)) == [Outcome.TIMEOUT]
    assert store.backend.stats().bytes_written == 0


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("127.0.0.1:9", "http://HOST:PORT"),
        ("ftp://h:1", "http://HOST:PORT"),
        ("http://h:99999", "http://HOST:PORT"),
        ("http://h:1/path", "http://HOST:PORT"),
        ("http://", "http://HOST:PORT"),
    ],
)
def test_urls_that_are_none(root, url, says):
    assert says in refused(OptionError, root=str(root), metadata_url=url)


def test_a_url_is_told_without_its_password(root):
    message = refused(OptionError, root=str(root), metadata_url="ftp://me:hunter2@h:1")
    assert "hunter2" not in message


def test_a_service_that_is_not_there_is_refused_soon_and_with_the_mend(root):
    [port] = free_ports(1)
    started = time.monotonic()
    message = refused(root=str(root), metadata_url=f"http://127.0.0.1:{port}")
    assert "hicache-hf3fs metadata --root" in message
    assert time.monotonic() - started < 10
    assert "cannot be reached" in refused(root=str(root), metadata_url="http://no-such-host.invalid:80")


def test_a_service_that_does_not_answer_is_given_up(root, monkeypatch):
    import socket

    monkeypatch.setattr("hicache_hf3fs.client._PATIENCE_SECONDS", 0.2)
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        port = silent.getsockname()[1]
        assert "did not answer in time" in refused(root=str(root), metadata_url=f"http://127.0.0.1:{port}")


class _Other(BaseHTTPRequestHandler):
    def do_POST(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html>welcome</html>")

    def log_message(self, *_):
        pass


def test_another_kind_of_server_is_told_apart(root):
    with HTTPServer(("127.0.0.1", 0), _Other) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            message = refused(root=str(root), metadata_url=f"http://127.0.0.1:{server.server_port}")
        finally:
            server.shutdown()
            thread.join()
    assert "no metadata service" in message


def test_two_indexes_for_one_root_are_refused(service, opened, root, tmp_path):
    opened(root=str(root))
    message = refused(**{**service.options, "root": str(root)})
    assert "belong to another index" in message
    assert "belong to another index" in refused(root=str(root), index_dir=str(tmp_path / "index"))


def test_a_root_that_is_not_mounted_is_refused(service, opened, root):
    store = opened(**service.options)
    store.set(store.key(1))
    assert "is the file system mounted there" in refused(**{**service.options, "root": str(root)})


def test_options_that_contradict_each_other(root):
    assert "two indexes" in refused(OptionError, root=str(root), metadata_url="http://h:1", index_dir="/x")
    assert "metadata_url" in refused(OptionError, root=str(root), metadata_token="x")


def test_connections_are_kept_and_closed(service):
    index = RemoteIndex(service.options["metadata_url"], service.options["metadata_token"], 60.0)
    descriptors = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        index.totals()
    assert len(os.listdir("/proc/self/fd")) == descriptors
    index.close()
    assert len(os.listdir("/proc/self/fd")) == descriptors - 1


def test_the_command_refuses_what_cannot_be(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("HICACHE_HF3FS_TOKEN", raising=False)
    where = ["metadata", "--root", str(tmp_path / "index")]
    assert main([*where, "--port", "99999"]) == 2
    assert main([*where, "--host", "0.0.0.0"]) == 2
    assert main([*where, "--max-size", "a lot"]) == 2
    assert main(["metadata", "--root", ""]) == 2
    (tmp_path / "empty").write_text("")
    assert main([*where, "--token-file", str(tmp_path / "empty")]) == 2
    assert main([*where, "--token-file", str(tmp_path / "none")]) == 2
    said = capsys.readouterr().err
    assert "'a lot' is no size" in said
    assert re.findall(r"--no-token|0 to 65535|is empty|No such file", said) == [
        "0 to 65535",
        "--no-token",
        "is empty",
        "is empty",
        "No such file",
    ]
    assert not Path(tmp_path / "index").exists()


def test_the_command_ends_when_it_is_told_to(tmp_path):
    command = [sys.executable, "-m", "hicache_hf3fs.main", "metadata", "--root", str(tmp_path / "i"), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    line = process.stdout.readline()
    assert re.match(r"hicache-hf3fs metadata: http://127\.0\.0\.1:\d+ store [0-9a-f]{16}\n", line)
    process.terminate()
    assert process.wait(timeout=30) == 0
    process.stdout.close()
    assert not list((tmp_path / "i").glob("*-wal"))


def test_ports_that_are_taken_are_told(tmp_path, service):
    port = service.options["metadata_url"].rpartition(":")[2]
    index = tmp_path / "i"
    command = [sys.executable, "-m", "hicache_hf3fs.main", "metadata", "--root", str(index), "--port", port]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert "Address already in use" in run.stderr


def test_the_service_listens_on_ipv6_too(tmp_path):
    index = SqliteIndex(open_private("--root", str(tmp_path / "i")), max_size=None, terms=True)
    try:
        service = MetadataService(("::1", 0), index, None)
    except OSError as error:
        index.close()
        pytest.skip(f"no IPv6 here: {error}")
    with closing(index), service:
        thread = threading.Thread(target=service.serve_forever)
        thread.start()
        remote = RemoteIndex(f"http://[::1]:{service.server_port}", None, 60.0)
        assert remote.totals().pages == 0
        remote.close()
        service.shutdown()
        thread.join()


def test_the_dev_server_is_found(tmp_path):
    server = make_dev_server("hf3fs", tmp_path)
    assert server.backend == "hf3fs"
    assert set(server.options) == {"root", "metadata_url", "metadata_token"}
