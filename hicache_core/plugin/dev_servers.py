"""Throwaway real servers for tests and demos: entry-point group `hicache.dev_servers`, `hicache dev-server NAME`.

An entry is a callable `(directory: Path) -> DevServer`. It listens on loopback only, keeps everything below its
directory, and is stopped by the pids that it started itself; on Linux also where the process that started it is
killed (`server_watch`).
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

from hicache_core.errors import DevServerError, DuplicateNameError, HiCacheError, PluginError, UnknownNameError
from hicache_core.plugin.extensions import registered
from hicache_core.plugin.server_watch import Watch, start_watch

GROUP = "hicache.dev_servers"
_LAST_LINES = 12
_OURS = frozenset({"hf3fs", "mooncake", "s3"})
"""Plugins of this project that bring a server, whether they are installed or not."""


def free_ports(count: int) -> list[int]:
    """`count` different TCP ports that were free on loopback a moment ago (all were held at the same time)."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]


class ServerProcess:
    """One process of a throwaway server. Owned by the thread that starts and stops it.

    argv: the command. directory: its working directory; output goes to `directory/name.log`. environment: added to
    this process's. ready: asked until it says True (it may raise OSError or HiCacheError while the server comes up).
    """

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        *,
        directory: Path,
        ready: Callable[[], bool],
        environment: Mapping[str, str] | None = None,
        ready_within: float = 30.0,
    ) -> None:
        self.name, self.argv, self.directory = name, list(argv), directory
        self.log = directory / f"{name}.log"
        self._ready, self._ready_within = ready, ready_within
        self._environment = dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._watch: Watch | None = None

    @property
    def pid(self) -> int:
        """The running process's id. Raises DevServerError where none runs."""
        if self._process is None:
            raise DevServerError(f"{self.name} is not running; start() it first")
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process runs now."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it and wait until it is ready. Raises DevServerError, with nothing left running."""
        if self.alive:
            raise DevServerError(f"{self.name} is already running (pid {self.pid})")
        self.kill()  # one that ended by itself was not waited for, nor its watch
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self.log.open("ab") as log:
            try:
                self._process = subprocess.Popen(
                    self.argv,
                    cwd=self.directory,
                    env={**os.environ, **self._environment},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # a Ctrl-C meant for us is not also theirs; we stop them in order
                )
            except OSError as error:
                raise DevServerError(
                    f"{self.name} could not be started ({self.argv[0]}): {error.strerror}"
                ) from error
        try:
            self._watch = start_watch(self._process.pid)
            self._await_ready(self._process)
        except BaseException:
            self.kill()
            raise

    def _await_ready(self, process: subprocess.Popen[bytes]) -> None:
        until = time.monotonic() + self._ready_within
        pause = threading.Event()
        cause = "it never answered"
        while time.monotonic() < until:
            if process.poll() is not None:
                raise DevServerError(f"{self.name} ended with code {process.returncode}:\n{self.last_lines()}")
            try:
                if self._ready():
                    return
            except (OSError, HiCacheError) as error:
                cause = str(error)
            pause.wait(0.05)  # a server announces nothing that could be awaited
        raise DevServerError(
            f"{self.name} was not ready after {self._ready_within:g} s ({cause}):\n{self.last_lines()}"
        )

    def last_lines(self) -> str:
        """The end of its log."""
        try:
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-_LAST_LINES:])
        except FileNotFoundError:
            return "(no log)"

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone. Nothing happens where none runs."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(timeout=30)
        self._process = None
        if self._watch is not None:
            self._watch.kill()
            self._watch.wait(timeout=30)
            self._watch = None

    def stop(self, *, sign: int = signal.SIGTERM, within: float = 10.0) -> None:
        """Ask it to end; after `within` seconds it is killed."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(sign)
            try:
                self._process.wait(timeout=within)
            except subprocess.TimeoutExpired:
                pass  # kill() follows
        self.kill()


@dataclass
class DevServer:
    """A throwaway store: its processes in starting order, and how a backend is configured to use it.

    backend, options: paste-able. environment: what a client process should have set besides (credentials).
    """

    backend: str
    options: dict[str, Any]
    processes: list[ServerProcess]
    environment: dict[str, str] = field(default_factory=dict)

    def start(self) -> None:
        """Start every process, each when the one before is ready. All or none."""
        try:
            for process in self.processes:
                process.start()
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """End every process, the last first."""
        for process in reversed(self.processes):
            process.stop()

    def kill(self) -> None:
        """SIGKILL to every process: what a crash looks like."""
        for process in reversed(self.processes):
            process.kill()

    def restart(self) -> None:
        """Stop what still runs and start everything on the same ports and in the same directory."""
        self.stop()
        self.start()

    def __enter__(self) -> DevServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def dev_server_names() -> list[str]:
    """The stores of which a throwaway server can be started."""
    return sorted(registered(GROUP))


def make_dev_server(name: str, directory: Path) -> DevServer:
    """The throwaway server of that name, not yet started.

    Raises UnknownNameError (names the nearest), DuplicateNameError, PluginError (its cause: often an SDK's install
    line).
    """
    entry = _entry(name)
    try:
        made: DevServer = entry.load()(directory)
    except HiCacheError:
        raise
    except Exception as error:
        raise PluginError(f"dev server {name!r} ({entry.value}) could not be made: {error}") from error
    return made


def _entry(name: str) -> EntryPoint:
    entries = registered(GROUP).get(name)
    if not entries:
        hint = f"Its plugin brings it: pip install hicache-{name}" if name in _OURS else ""
        raise UnknownNameError("dev server", name, registered(GROUP), hint)
    if len(entries) > 1:
        claims = " and ".join(f"{e.value} ({e.dist.name if e.dist else 'unknown'})" for e in entries)
        raise DuplicateNameError(f"dev server {name!r} is claimed by {claims}; uninstall one of them")
    return entries[0]
