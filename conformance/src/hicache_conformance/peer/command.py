"""What `hicache conformance --sglang-class MODULE:CLASS` runs."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from hicache_conformance.command import FAILED, MISUSED, PASSED, UNOPENED
from hicache_conformance.command import _tidy_hypothesis as tidy_hypothesis
from hicache_conformance.peer.judge import PeerReport, judge
from hicache_conformance.peer.known import kit_for
from hicache_conformance.terminal import print_report
from hicache_core.adapters.sglang_backend.loading import find_class
from hicache_core.adapters.sglang_backend.options import SglangOptions
from hicache_core.cli.output import write_json
from hicache_core.errors import HiCacheError, OpenError
from hicache_core.plugin.options import parse_options


def run_judge(
    sglang_class: str,
    options: Mapping[str, Any],
    *,
    json_path: str | None = None,
    levels: Iterable[str] | None = None,
    seed: int | None = None,
    by_itself: bool = False,
    console: Console | None = None,
) -> int:
    """Judge a class of SGLang and show what was found.

    options: of the backend `sglang`, as text; `{directory}` in extra_config and environment stands for a fresh
    directory. None for a class that comes with SGLang: its kit has them. by_itself: without the levels.
    Returns 0 (nothing found), 1 (findings), 2
    (unknown class or option) or 3 (it cannot be constructed).
    """
    complain = console or Console(stderr=True)
    console = Console(quiet=True) if json_path == "-" else console or Console()
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)  # the cases break the store on purpose; what the class logs of it is no news
    try:
        typed = _typed(sglang_class, options)
        find_class(parse_options(SglangOptions, {"sglang_class": sglang_class, **typed}))
        with tidy_hypothesis():
            chosen = tuple(levels) if levels else None
            report = judge(kit_for(sglang_class, typed), levels=chosen, seed=seed, contract=not by_itself)
        if json_path is not None:
            write_json(report.as_dict(), json_path)
    except (HiCacheError, OSError) as error:
        complain.print(f"error: {error}", style="bold red", markup=False, highlight=False, soft_wrap=True)
        return UNOPENED if isinstance(error, OpenError) else MISUSED
    finally:
        logging.disable(before)
    show(report, console)
    return FAILED if report.failed else PASSED


def _typed(sglang_class: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The given options with their types; only those that were given."""
    where = "options of the backend sglang"
    parsed = parse_options(SglangOptions, {**options, "sglang_class": sglang_class}, where=where, strict=False)
    return {name: getattr(parsed, name.replace("-", "_")) for name in options if name != "sglang_class"}


def show(report: PeerReport, console: Console) -> None:
    """The findings, then the levels."""
    table = Table(title=f"{report.kit.sglang_class} by itself", title_justify="left")
    table.add_column("defect", style="bold red")
    table.add_column("what was seen")
    table.add_column("case", style="dim")
    for finding in report.findings:
        table.add_row(Text(finding["defect"]), Text(finding["reason"]), finding["case"])
    console.print(table)
    held = [case.id for case, result in report.results if result.outcome == "pass"]
    console.print(Text(f"  holds: {', '.join(held) or 'nothing'}", style="green"))
    for case, result in report.results:
        if result.outcome == "skip":
            console.print(Text(f"  not judged: {case.id}, since {result.reason}", style="dim"))
    if report.kit.note:
        console.print(Text(f"  {report.kit.note}", style="yellow"))
    if report.contract is not None:
        print_report(report.contract, console)
    elif report.contract_note:
        console.print(Text(f"  {report.contract_note}", style="yellow"))
