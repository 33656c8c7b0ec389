"""The report for people: a progress bar while it runs, then a table of levels and whatever did not pass."""

from __future__ import annotations

import re

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from hicache_conformance.casebook import Case
from hicache_conformance.report import FAILURES, OUTCOMES, Appendix, CaseResult, Report
from hicache_core.plugin.sizes import format_size

_HEX = re.compile(r"[0-9a-f]{24,}")
"""Namespaces and page hashes: a person needs their beginning, the JSON report has all of them."""

_STYLE = {
    "pass": "green",
    "fail": "bold red",
    "error": "bold magenta",
    "skip": "yellow",
    "xfail": "cyan",
    "partial": "yellow",
    "not_declared": "dim",
}


class ProgressView:
    """A bar over the cases, on a terminal; the name of each that does not hold, as soon as it is known."""

    def __init__(self, console: Console, total: int) -> None:
        self._progress = Progress(
            TextColumn("[bold]conformance"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[case]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("conformance", total=total, case="")

    def __enter__(self) -> ProgressView:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def on_start(self, case: Case) -> None:
        """Name the case that runs."""
        self._progress.update(self._task, case=case.id)

    def on_result(self, result: CaseResult) -> None:
        """Advance; name what did not hold. The report gives the reasons."""
        self._progress.advance(self._task)
        if result.outcome in ("fail", "error") and not self._progress.disable:
            self._progress.console.print(_line(result))


class MeasuringView:
    """A bar over the rounds of the throughput appendix, on a terminal."""

    def __init__(self, console: Console, total: int) -> None:
        columns = (TextColumn("[bold]throughput"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._progress.add_task("throughput", total=total)

    def __enter__(self) -> MeasuringView:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def advance(self) -> None:
        """A round is done."""
        self._progress.advance(self._task)


def print_report(report: Report, console: Console) -> None:
    """Levels, counts, every skip and its reason, versions and seed."""
    console.print(_levels_table(report))
    for outcome in ("fail", "error", "xfail", "skip"):
        reasons: dict[str, list[CaseResult]] = {}
        for result in report.cases:
            if result.outcome == outcome and result.level not in report.not_declared:
                reasons.setdefault(_HEX.sub(lambda found: f"{found[0][:8]}…", result.reason), []).append(result)
        for reason, results in reasons.items():
            _print_reason(console, reason, results)
        if reasons and outcome in FAILURES:
            first = next(iter(reasons.values()))[0]
            console.print(Text(f"        run it again: {report.reproduce(first.id)}", style="dim"), soft_wrap=True)
    beside: dict[str, list[str]] = {}
    for result in report.results:
        if result.not_applicable:
            beside.setdefault(result.reason, []).append(result.id)
    for reason, ids in beside.items():
        console.print(Text(f"  not applicable, since {reason}: {', '.join(ids)}", style="dim"))
    if report.appendix is not None:
        _print_appendix(report.appendix, console)
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    console.print(Text(f"seed {report.seed}; {versions}", style="dim"))
    if report.fake:
        console.print(Text(report.fake_sentence, style="bold yellow"))


def _print_appendix(appendix: Appendix, console: Console) -> None:
    """Megabytes a second by page size. A store is not judged by them."""
    if appendix.speeds:
        table = Table(title="Throughput, sealed and verified (decides nothing)")
        pages = appendix.speeds[0].pages
        for column in ("page", "put MB/s", "get MB/s", f"exists of {pages}, µs"):
            table.add_column(column, justify="right")
        for speed in appendix.speeds:
            numbers = (speed.set_mb_per_s, speed.get_mb_per_s, speed.exists_us)
            table.add_row(format_size(speed.page_bytes), *[f"{number:,.0f}" for number in numbers])
        console.print(table)
    for text in appendix.skipped:
        console.print(Text(f"  not measured: {text}", style="yellow"), soft_wrap=True)


def _levels_table(report: Report) -> Table:
    table = Table(title=f"Conformance of {report.backend!r}")
    table.add_column("level")
    table.add_column("mark")
    for outcome in OUTCOMES:
        table.add_column(outcome, justify="right")
    for level, mark in report.levels.items():
        counts = [sum(r.outcome == o and r.level == level for r in report.cases) for o in OUTCOMES]
        table.add_row(level, Text(mark, style=_STYLE[mark]), *[str(n) if n else "·" for n in counts])
    return table


def _print_reason(console: Console, reason: str, results: list[CaseResult]) -> None:
    """One case and its reason, or the cases that share a reason beneath it."""
    if len(results) == 1:
        console.print(_line(results[0]).append(f": {reason}"), soft_wrap=True)
        return
    outcome = results[0].outcome
    console.print(
        Text.assemble((f"  {outcome:5}", _STYLE[outcome]), f" {len(results)} cases: {reason}"), soft_wrap=True
    )
    for result in results:
        console.print(f"          {result.level}/{result.id}", highlight=False, soft_wrap=True)


def _line(result: CaseResult) -> Text:
    return Text.assemble((f"  {result.outcome:5}", _STYLE[result.outcome]), f" {result.level}/", (result.id, "bold"))
