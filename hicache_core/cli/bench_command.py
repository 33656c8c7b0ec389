"""`hicache bench`: how fast a store is here, sealed and verified."""

from __future__ import annotations

from typing import Annotated

import typer

from hicache_core.cli.choices import Assignments, Backend, JsonFile, chosen
from hicache_core.cli.output import Exit, out, progress, table, write_json
from hicache_core.errors import OptionError
from hicache_core.plugin.sizes import format_size, parse_size
from hicache_core.storage.measure import GRAIN, Speed, measure_backend


def register(app: typer.Typer) -> None:
    """Add the command to `hicache`."""
    app.command("bench")(bench)


def bench(
    backend: Backend,
    option: Assignments = None,
    page_bytes: Annotated[
        str, typer.Option(help="page sizes, comma-separated, multiples of 4KiB")
    ] = "64KiB,256KiB,1MiB",
    pages: Annotated[int, typer.Option(help="pages per batch", min=1, max=4096)] = 128,
    rounds: Annotated[int, typer.Option(help="counted rounds; medians are shown", min=1)] = 5,
    json_path: JsonFile = None,
) -> None:
    """Set, find and get fresh pages under a namespace of its own. Exit code 1 where a page failed."""
    sizes = [parse_page_bytes(text) for text in page_bytes.split(",")]
    choice = chosen(backend, option)
    rows: list[Speed] = []
    with progress() as bar:
        for size in sizes:
            task = bar.add_task(f"{format_size(size)} pages", total=rounds + 1)
            done = lambda task=task: bar.advance(task)  # noqa: E731
            rows.append(measure_backend(choice, size, pages=pages, rounds=rounds, on_round=done))
    shown = [
        (
            format_size(row.page_bytes),
            f"{row.set_mb_per_s:,.0f}",
            f"{row.get_mb_per_s:,.0f}",
            f"{row.exists_us:,.0f}",
            f"{row.memcpy_mb_per_s:,.0f}",
            row.failed,
        )
        for row in rows
    ]
    names = ("page", "set MB/s", "get MB/s", f"exists µs/{pages}", "memcpy MB/s", "failed")
    if json_path != "-":
        out.print(
            table(f"{choice.spec.name}: {pages} pages a batch, median of {rounds}", names, shown, right=range(6))
        )
    if json_path:
        write_json({"backend": choice.spec.name, "options": choice.shown_options(), "rows": rows}, json_path)
    if any(row.failed for row in rows):
        raise typer.Exit(Exit.FAILED)


def parse_page_bytes(text: str) -> int:
    """'64KiB' -> 65536.

    Raises:
        OptionError: the text is no size, or not a multiple of 4 KiB.
    """
    try:
        size = parse_size(text)
    except ValueError as error:
        raise OptionError(f"--page-bytes: {error}") from error
    if size < GRAIN or size % GRAIN:
        raise OptionError(f"--page-bytes: {text!r} is not a multiple of {GRAIN} bytes")
    return size
