"""`hicache dev-server NAME`: a throwaway real store on this machine, for tests and demos."""

from __future__ import annotations

import json
import shlex
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from rich.markup import escape

from hicache_core.cli.choices import AsJson
from hicache_core.cli.output import Exit, err, out
from hicache_core.plugin.dev_servers import DevServer, dev_server_names, make_dev_server


def register(app: typer.Typer) -> None:
    """Add the command to `hicache`."""
    app.command("dev-server")(dev_server)


def dev_server(
    name: Annotated[str, typer.Argument(help="which store (mooncake, s3, …); `list` names those installed")],
    directory: Annotated[
        Path | None,
        typer.Option("--dir", help="keep everything there (default: a temporary one)"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Start a throwaway real server (free ports, loopback, own directory), say how to use it, stop it on Ctrl-C."""
    if name == "list":
        out.print("\n".join(dev_server_names()) or "none: no plugin with a dev server is installed")
        return
    stopped = threading.Event()
    with _signals(stopped), _place(directory) as place, make_dev_server(name, place) as server:
        _announce(name, server, place, as_json=as_json)
        while not stopped.wait(1.0):
            gone = next((process for process in server.processes if not process.alive), None)
            if gone is not None:
                err.print(f"[bold red]{gone.name} ended by itself[/]\n{escape(gone.last_lines())}")
                raise typer.Exit(Exit.FAILED)


@contextmanager
def _signals(stopped: threading.Event) -> Iterator[None]:
    """SIGINT and SIGTERM ask for the end, so that the server is always stopped by us."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        stopped.set()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _place(directory: Path | None) -> Iterator[Path]:
    if directory is not None:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        yield directory.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="hicache-dev-") as made:
        yield Path(made)


def _announce(name: str, server: DevServer, place: Path, *, as_json: bool) -> None:
    config: dict[str, Any] = {"backend": server.backend, "options": server.options}
    if as_json:
        told = {**config, "environment": server.environment, "pids": [p.pid for p in server.processes]}
        print(json.dumps(told), flush=True)  # noqa: T201 - one line for a machine that waits for it
        return
    out.print(f"[bold]{name}[/] runs in {place} (pid {', '.join(str(p.pid) for p in server.processes)})")
    out.print("On a command line, as of `hicache store ls` (`hicache conformance NAME` takes the -o alone):")
    out.print(f"--backend {server.backend} {_assignments(server.options)}", soft_wrap=True, markup=False)
    out.print('In JSON (SGLang: under "hicache"; vLLM: in the secondary tier; LMCache: in adapter_params):')
    out.print(json.dumps(config), soft_wrap=True, markup=False)
    for variable, value in server.environment.items():
        out.print(f"export {variable}={value}", soft_wrap=True, markup=False)
    out.print("Ctrl-C stops it.")


def _assignments(options: dict[str, Any]) -> str:
    """The options as a shell takes them: text as it is, everything else as JSON."""
    pairs = ((name, value if isinstance(value, str) else json.dumps(value)) for name, value in options.items())
    return " ".join(f"-o {shlex.quote(f'{name}={value}')}" for name, value in pairs)
