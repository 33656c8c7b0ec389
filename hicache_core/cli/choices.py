"""The options that several commands share."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

from hicache_core.cli.output import check_report_file
from hicache_core.plugin.options import split_assignments
from hicache_core.plugin.select import BackendChoice, choose_backend


def _json_file(target: str | None) -> str | None:
    return check_report_file(target)


Backend: TypeAlias = Annotated[str, typer.Option("--backend", "-b", help="a backend's name, or a URL (NAME://…)")]
Assignments: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--option", "-o", metavar="NAME=VALUE", help="an option of the backend; repeatable"),
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="JSON on standard output instead of a table")]
JsonFile: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--json",
        metavar="FILE",
        help="write the report there; - is standard output",
        callback=_json_file,
    ),
]


def chosen(backend: str, assignments: list[str] | None) -> BackendChoice:
    """The backend that `--backend` and `-o` name.

    Raises:
        ConfigError: the name, an option, or a value is wrong; the message says which and what would be right.
        PluginError: the backend is installed and broken.
    """
    return choose_backend(backend, split_assignments(assignments or []) or None, strict=False)
