"""How every command speaks: tables for people, JSON for machines, exit codes for scripts."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from hicache_core.errors import ConfigError

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


class Exit(IntEnum):
    """Exit codes of `hicache`."""

    OK = 0
    FAILED = 1
    """The command ran and a check did not hold."""
    USAGE = 2
    """Bad input: options, configuration, files."""
    STORE = 3
    """The store could not be opened or reached."""


def table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    right: Sequence[int] = (),
    whole: Sequence[int] = (),
) -> Table:
    """A rich table; `right` holds the indices of columns to align right, `whole` those whose cells never break.

    A cell is shown as it is: text from a plugin or a path may hold brackets. Styled cells are `Text`.
    """
    made = Table(title=title, title_justify="left", title_style="bold")
    for index, column in enumerate(columns):
        made.add_column(
            column, justify="right" if index in right else "left", overflow="fold", no_wrap=index in whole
        )
    for row in rows:
        made.add_row(*(cell if isinstance(cell, Text) else Text("" if cell is None else str(cell)) for cell in row))
    return made


def progress() -> Progress:
    """A bar on standard error while something runs, gone when it ends; nothing where that is no terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=err, transient=True, disable=not err.is_terminal or err.is_dumb_terminal)


def print_json(data: Any) -> None:
    """Indented JSON on standard output, nothing else."""
    sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(data, enc_hook=str), indent=2) + b"\n")
    sys.stdout.buffer.flush()


def write_json(data: Any, target: str) -> None:
    """Indented JSON into the file `target`, or on standard output for `-`. Raises ConfigError where it cannot be."""
    if target == "-":
        print_json(data)
        return
    path = Path(target)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.format(msgspec.json.encode(data, enc_hook=str), indent=2) + b"\n")
    except OSError as error:
        raise _unwritable(target, error) from error


def write_text(text: str, target: str, option: str) -> None:
    """A report as text into the file `target`. Raises ConfigError, which names `option`, where it cannot be."""
    path = Path(target)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise _unwritable(target, error, option) from error


def check_report_file(target: str | None, option: str = "--json") -> str | None:
    """`target`, once it is known that a report can be written there: better said before the work than after it.

    Makes its directory, and leaves no file where there was none. Raises ConfigError, which names `option`.
    """
    if target is None or target == "-":
        return target
    path = Path(target)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        new = not path.exists()
        if new or path.is_file() or path.is_dir():  # opening a pipe would wait for its reader
            path.open("ab").close()
        if new:
            path.unlink()
    except OSError as error:
        raise _unwritable(target, error, option) from error
    return target


def _unwritable(target: str, error: OSError, option: str = "--json") -> ConfigError:
    return ConfigError(f"{option} {target or repr(target)}: the report cannot be written: {error.strerror or error}")
