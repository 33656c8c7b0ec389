"""A throwaway server ends with the process that started it, however that one ends, and with no thread of it."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from hicache_core.plugin.dev_servers import DevServer, ServerProcess
from hicache_core.plugin.server_watch import start_watch

if sys.platform != "linux":
    pytest.skip("pidfds are Linux's", allow_module_level=True)
try:
    os.close(os.pidfd_open(os.getpid()))
except OSError as reason:
    pytest.skip(f"no pidfds here: {reason}", allow_module_level=True)

WAITS = [sys.executable, "-c", "import signal; signal.pause()"]
IGNORES_SIGTERM = [
    sys.executable, "-c",
    "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); signal.pause()",
]  # fmt: skip
PLUGIN = """
[hicache.dev_servers]
waits = dev_waits:make
"""
MODULE = """
import sys
from hicache_core.plugin.dev_servers import DevServer, ServerProcess

def make(directory):
    argv = [sys.executable, "-c", "import signal; signal.pause()"]
    two = [ServerProcess(name, argv, directory=directory, ready=lambda: True) for name in ("one", "other")]
    return DevServer("waits", {}, two)
"""


@contextmanager
def pidfd(pid: int) -> Iterator[int]:
    fd = os.pidfd_open(pid)
    try:
        yield fd
    finally:
        os.close(fd)


def ends(fd: int) -> bool:
    """Whether the process of this pidfd ends; a generous bound for a loaded machine."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(60_000))


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A directory of packages with a plugin whose server is two processes."""
    info = tmp_path / "site" / "dev_waits-0.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: dev-waits\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text(PLUGIN)
    (info.parent / "dev_waits.py").write_text(MODULE)
    return info.parent


def test_the_command_is_killed_and_its_servers_end(site: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from hicache_core.cli.app import main; main()"]
    command += ["dev-server", "waits", "--dir", str(tmp_path / "d"), "--json"]
    with ExitStack() as undo:
        running = undo.enter_context(
            subprocess.Popen(command, stdout=subprocess.PIPE, env={"PYTHONPATH": str(site), "PATH": ""})
        )
        undo.callback(running.kill)
        assert running.stdout is not None
        servers = [undo.enter_context(pidfd(pid)) for pid in json.loads(running.stdout.readline())["pids"]]
        assert len(servers) == 2
        running.kill()
        assert running.wait(timeout=60) == -signal.SIGKILL
        assert [ends(server) for server in servers] == [True, True]


def test_one_that_ignores_the_request_is_killed() -> None:
    with (
        subprocess.Popen(WAITS) as starter,
        subprocess.Popen(IGNORES_SIGTERM, stdout=subprocess.PIPE) as server,
    ):
        assert server.stdout is not None
        server.stdout.readline()  # from here on it ignores it
        watch = start_watch(server.pid, starter=starter.pid, patience=0.05)
        starter.kill()
        assert server.wait(timeout=60) == -signal.SIGKILL
        assert watch is not None
        assert watch.wait(timeout=60) == 0


def test_a_server_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    server = ServerProcess("waits", WAITS, directory=tmp_path, ready=lambda: True)
    thread = threading.Thread(target=server.start)
    thread.start()
    thread.join(60)
    try:
        assert not thread.is_alive()
        assert server.alive
    finally:
        server.stop()


def test_a_watch_goes_with_its_server(tmp_path: Path) -> None:
    server = ServerProcess("waits", WAITS, directory=tmp_path, ready=lambda: True)
    server.start()
    watch = server._watch
    assert watch is not None
    with pidfd(server.pid) as own:
        os.kill(server.pid, signal.SIGKILL)
        assert ends(own)
    assert watch.wait(timeout=60) == 0
    server.start()  # the one that ended by itself is waited for first
    assert server.alive
    second = server._watch
    server.kill()
    assert second is not None
    assert second.returncode is not None


@pytest.mark.parametrize("lacking", ["pidfds in this Python", "a program to run", "pidfds in this kernel"])
def test_a_server_starts_without_a_watch_where_there_can_be_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacking: str
) -> None:
    if lacking == "pidfds in this Python":
        monkeypatch.delattr(os, "pidfd_open")
    elif lacking == "a program to run":
        monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    else:
        monkeypatch.setattr(os, "pidfd_open", lambda pid: os.open(tmp_path / "absent", os.O_RDONLY))
    with DevServer("waits", {}, [ServerProcess("waits", WAITS, directory=tmp_path, ready=lambda: True)]) as server:
        assert server.processes[0].alive
