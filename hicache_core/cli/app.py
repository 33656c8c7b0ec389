"""`hicache`: one command line for operating, judging and measuring stores."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from hicache_core import __version__
from hicache_core.cli import (
    backends_command,
    bench_command,
    config_command,
    conformance_command,
    dev_server_command,
    doctor_command,
    explain_command,
    new_backend_command,
    replay_command,
    store_command,
)
from hicache_core.cli.output import out
from hicache_core.cli.running import run

app = typer.Typer(
    name="hicache",
    help="KV-cache hierarchy for LLM inference: stores, their health, their proof.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        out.print(f"hicache {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version and end")
    ] = False,
) -> None:
    """KV-cache hierarchy for LLM inference: stores, their health, their proof."""


for module in (
    doctor_command,
    backends_command,
    config_command,
    store_command,
    explain_command,
    replay_command,
    conformance_command,
    bench_command,
    dev_server_command,
    new_backend_command,
):
    module.register(app)


def main() -> None:
    """Run the command line."""
    sys.path.append(str(Path.cwd()))  # so that `dynamic` finds a module in the current directory
    run(app)
