"""`hicache config explain`: each setting, its value, where it came from, and what was corrected."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from hicache_core.cli.choices import AsJson, Assignments
from hicache_core.cli.output import out, print_json, table
from hicache_core.config.explain import explain
from hicache_core.config.load import resolve
from hicache_core.plugin.options import split_assignments

group = typer.Typer(help="The configuration: values, sources, corrections.", no_args_is_help=True)

Setting = Annotated[
    list[str] | None,
    typer.Option("--set", "-s", metavar="NAME=VALUE", help="a setting, as a flag would give it; repeatable"),
]


def register(app: typer.Typer) -> None:
    """Add the commands to `hicache`."""
    app.add_typer(group, name="config")


@group.command("explain")
def explain_config(
    config: Annotated[Path | None, typer.Option(help="JSON, TOML or YAML file; default: HICACHE_CONFIG")] = None,
    setting: Setting = None,
    backend: Annotated[str | None, typer.Option("--backend", "-b", help="an L3 backend's name, or a URL")] = None,
    option: Assignments = None,
    changed: Annotated[bool, typer.Option("--changed", help="only what is not a default")] = False,
    as_json: AsJson = False,
) -> None:
    """Each value and where it came from (defaults < file < HICACHE_* < flags), each correction and why."""
    flags: dict[str, Any] = dict(split_assignments(setting or [], where="--set"))
    if backend is not None:
        flags["hicache_storage_backend"] = backend
    with _unlogged():
        resolved = resolve(flags, backend_options=split_assignments(option or []), file=config)
    rows = [row for row in explain(resolved) if not changed or row.source != "default"]
    if as_json:
        print_json({"settings": rows, "unknown_variables": resolved.unknown_variables})
        return
    shown = [(row.name, "none" if row.value is None else row.value, row.source) for row in rows]
    out.print(table("Configuration", ("setting", "value", "from"), shown, whole=(0,)))
    for row in rows:
        if row.correction:
            out.print(f"[yellow]corrected[/] {escape(row.correction)}")
        for replaced in row.overridden:
            out.print(f"[dim]replaced[/] {row.name}: {escape(replaced)}")
    for name in resolved.unknown_variables:
        out.print(f"[yellow]note[/] the variable {name} is read by no one here")


@contextmanager
def _unlogged() -> Iterator[None]:
    """Corrections are part of what is shown, so that they need not be logged as well."""
    log = logging.getLogger("hicache_core.config")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)
