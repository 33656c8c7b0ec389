"""`hicache doctor`: what this environment has, what is broken, and how to mend it."""

from __future__ import annotations

import msgspec
import typer
from rich.text import Text

from hicache_core.cli.choices import AsJson
from hicache_core.cli.output import Exit, out, print_json, table
from hicache_core.plugin.doctor import diagnose

_STYLE = {"ok": "green", "warn": "yellow", "error": "red"}


def register(app: typer.Typer) -> None:
    """Add the command to `hicache`."""
    app.command("doctor")(doctor)


def doctor(as_json: AsJson = False) -> None:
    """Look at Python, libraries, memory and every plugin. Exit code 1 where something is broken."""
    findings = diagnose()
    if as_json:
        print_json([msgspec.to_builtins(finding) for finding in findings])
    else:
        rows = [(Text(f.level, _STYLE[f.level]), f.subject, f.message, f.mend) for f in findings]
        out.print(table("hicache doctor", ("", "subject", "found", "to do"), rows))
    if any(finding.level == "error" for finding in findings):
        raise typer.Exit(Exit.FAILED)
