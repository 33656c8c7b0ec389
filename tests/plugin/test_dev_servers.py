"""Throwaway servers: ready when they say so, ended by their own pid, and telling why when they do not come up."""

from __future__ import annotations

import json
import shlex
import signal
import socket
import subprocess
import sys
import urllib.request
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from hicache_core.cli import dev_server_command
from hicache_core.errors import DevServerError, PluginError, UnknownNameError
from hicache_core.plugin import dev_servers
from hicache_core.plugin.dev_servers import DevServer, ServerProcess, free_ports, make_dev_server


def web(directory: Path) -> DevServer:
    """Python's own file server as a store."""
    [port] = free_ports(1)

    def ready() -> bool:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5) as answer:
            return bool(answer.status == 200)

    argv = [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"]
    return DevServer("web", {"port": port}, [ServerProcess("web", argv, directory=directory, ready=ready)])


def open_port(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def test_ports_differ() -> None:
    assert len(set(free_ports(16))) == 16


def test_it_lives_is_killed_and_lives_again_on_the_same_port(tmp_path: Path) -> None:
    with web(tmp_path / "s") as server:
        first, port = server.processes[0].pid, server.options["port"]
        assert open_port(port)
        server.kill()
        assert not open_port(port)
        assert not server.processes[0].alive
        server.restart()
        assert open_port(port)
        assert server.processes[0].pid != first
    assert not open_port(port)


def test_twice_started_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    with web(tmp_path) as server:
        with pytest.raises(DevServerError, match="already running"):
            server.processes[0].start()
        assert server.processes[0].alive


def test_one_that_ends_says_why(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", "import sys; sys.exit('no such disk')"]
    process = ServerProcess("sad", argv, directory=tmp_path, ready=lambda: False)
    with pytest.raises(DevServerError, match=r"ended with code 1:\nno such disk"):
        process.start()
    assert not process.alive


def test_one_that_is_never_ready_is_not_left_running(tmp_path: Path) -> None:
    def never() -> bool:
        raise ConnectionRefusedError("nobody there")

    argv = [sys.executable, "-c", "import signal; signal.pause()"]
    process = ServerProcess("mute", argv, directory=tmp_path, ready=never, ready_within=0.2)
    with pytest.raises(DevServerError, match=r"not ready after 0.2 s \(nobody there\)"):
        process.start()
    with pytest.raises(DevServerError, match="not running"):
        _ = process.pid


def test_a_command_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DevServerError, match="could not be started"):
        ServerProcess("x", ["/no/such/server"], directory=tmp_path, ready=lambda: True).start()


def test_all_or_none(tmp_path: Path) -> None:
    server = web(tmp_path)
    server.processes.append(ServerProcess("second", ["/no/such"], directory=tmp_path, ready=lambda: True))
    with pytest.raises(DevServerError):
        server.start()
    assert not server.processes[0].alive


def test_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    entries = {
        "web": [EntryPoint("web", "no_such_module:make", dev_servers.GROUP)],
    }
    monkeypatch.setattr(dev_servers, "registered", lambda group: entries)
    with pytest.raises(UnknownNameError, match="did you mean 'web'"):
        make_dev_server("wbe", tmp_path)
    with pytest.raises(PluginError, match="no_such_module"):
        make_dev_server("web", tmp_path)


PLUGIN = """
[hicache.dev_servers]
web = dev_web:web
"""


def test_the_command_says_how_to_use_it_and_stops_it(tmp_path: Path) -> None:
    site = tmp_path / "site"
    info = site / "dev_web-0.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: dev-web\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text(PLUGIN)
    (site / "dev_web.py").write_text(Path(__file__).read_text())
    command = [sys.executable, "-c", "from hicache_core.cli.app import main; main()", "dev-server", "web", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={"PYTHONPATH": str(site), "PATH": ""}) as running:
        assert running.stdout is not None
        told = json.loads(running.stdout.readline())
        assert told["backend"] == "web"
        assert open_port(told["options"]["port"])
        running.send_signal(signal.SIGTERM)
        assert running.wait(timeout=30) == 0
    assert not open_port(told["options"]["port"])


def test_what_it_prints_can_be_pasted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = {"url": "s3://a/b c", "allow_http": True, "port": 7}
    dev_server_command._announce("web", DevServer("web", options, []), tmp_path, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    words = shlex.split(next(line for line in lines if line.startswith("--backend")))
    assert words == ["--backend", "web", "-o", "url=s3://a/b c", "-o", "allow_http=true", "-o", "port=7"]
    told = json.loads(next(line for line in lines if line.startswith("{")))
    assert told == {"backend": "web", "options": options}
