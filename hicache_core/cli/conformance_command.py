"""`hicache conformance`: judge a backend with the shared suite, which is a distribution of its own."""

from __future__ import annotations

from typing import Annotated

import typer

from hicache_core.cli.choices import Assignments, JsonFile
from hicache_core.errors import MissingDependencyError
from hicache_core.plugin.options import split_assignments

INSTALL = "pip install hicache-conformance"


def register(app: typer.Typer) -> None:
    """Add the command to `hicache`."""
    app.command("conformance")(conformance)


def conformance(
    backend: Annotated[str, typer.Argument(metavar="NAME", help="a backend's name, or a URL")],
    option: Assignments = None,
    level: Annotated[
        list[str] | None, typer.Option("--level", help="core, durable, hostile; repeatable; default: all declared")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="replay a run: the seed that its report names")] = None,
    json_path: JsonFile = None,
) -> None:
    """Judge a backend against the contract. Exit code 1 where a case does not hold."""
    try:
        from hicache_conformance.command import run_command
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith(("hicache_conformance", "pytest", "hypothesis")):
            raise
        raise MissingDependencyError(
            f"the conformance suite is a distribution of its own and {error.name!r} is not installed: {INSTALL}"
        ) from error
    options = split_assignments(option or [])
    raise typer.Exit(run_command(backend, options, json_path=json_path, levels=level or None, seed=seed))
