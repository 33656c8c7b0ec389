"""`hicache new-backend`: the distribution of a backend, ready to be installed, judged and changed."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from hicache_core.cli.output import out
from hicache_core.scaffold.writing import write_backend


def register(app: typer.Typer) -> None:
    """Add the command to `hicache`."""
    app.command("new-backend")(new_backend)


def new_backend(
    name: Annotated[str, typer.Argument(help="what configs will call it: small letters, digits, hyphens")],
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="a directory that is empty or not there yet")],
) -> None:
    """Write the distribution of a new storage backend, which earns the level core when first run."""
    written = write_backend(name, directory)
    for path in written:
        out.print(str(path), markup=False, soft_wrap=True)
    place = shlex.quote(f"{directory}[test]")
    out.print(f"\nNow:\n  pip install -e {place} && hicache conformance {name}", markup=False, soft_wrap=True)
    out.print(
        f"and put your store's client into {written[4].relative_to(directory)}; docs/guides/write-a-backend.md goes "
        "through it line by line.",
        markup=False,
        soft_wrap=True,
    )
