"""The second door: what `hicache conformance NAME` runs."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hypothesis.configuration import set_hypothesis_home_dir
from rich.console import Console

from hicache_conformance.badge import to_badge
from hicache_conformance.casebook import catalogue
from hicache_conformance.junit import to_junit
from hicache_conformance.measuring import STEPS, measure
from hicache_conformance.page import to_html
from hicache_conformance.report import Report
from hicache_conformance.runner import open_once, run
from hicache_conformance.target import Target
from hicache_conformance.terminal import MeasuringView, ProgressView, print_report
from hicache_core.cli.output import write_json, write_text
from hicache_core.errors import HiCacheError, OpenError

_FORMS: Mapping[str, Callable[[Report], str]] = {"--junit": to_junit, "--html": to_html, "--badge": to_badge}

PASSED, FAILED, MISUSED, UNOPENED = 0, 1, 2, 3


def run_command(
    name: str,
    options: Mapping[str, Any],
    *,
    json_path: Path | str | None = None,
    junit_path: Path | str | None = None,
    html_path: Path | str | None = None,
    badge_path: Path | str | None = None,
    measured: bool = False,
    levels: Iterable[str] | None = None,
    cases: Iterable[str] | None = None,
    seed: int | None = None,
    xfail: Mapping[str, str] | None = None,
    strict_options: bool = False,
    quiet: bool = False,
    console: Console | None = None,
) -> int:
    """Prove the backend `name` and show the report.

    options: as text from a command line (strict_options: already typed). Without options the backend's kit makes a
    throwaway store. levels, cases, seed: see `run`. xfail: case id -> reason. json_path: where the JSON report goes;
    `-` is standard output, and nothing else is said there. junit_path, html_path, badge_path: files. measured: with
    the throughput appendix. quiet: no terminal report. Returns 0 (no failure), 1 (a
    case failed), 2 (unknown backend, level or option; no backend at all) or 3 (the store does not open).
    """
    complain = console or Console(stderr=True)
    console = console or Console()
    quiet = quiet or json_path == "-"
    # Cases break the store on purpose; what the core logs about that is no news, unless someone has asked for logs.
    logging.getLogger("hicache_core").addHandler(logging.NullHandler())
    chosen = tuple(levels) if levels else None
    target = Target(name, dict(options), strict=strict_options, xfail=dict(xfail or {}))
    try:
        total = len(catalogue(chosen)) if cases is None else len(tuple(cases := tuple(cases)))
        open_once(target)
        with _tidy_hypothesis(), ProgressView(Console(quiet=True) if quiet else console, total) as view:
            report = run(
                target, levels=chosen, cases=cases, seed=seed, on_start=view.on_start, on_result=view.on_result
            )
        if measured:
            with MeasuringView(Console(quiet=True) if quiet else console, STEPS) as steps:
                report.appendix = measure(target, steps.advance)
        if json_path is not None:
            write_json(report.as_dict(), str(json_path))
        for option, path in (("--junit", junit_path), ("--html", html_path), ("--badge", badge_path)):
            if path is not None:
                write_text(_FORMS[option](report), str(path), option)
    except (HiCacheError, OSError) as error:
        complain.print(f"error: {error}", style="bold red", markup=False, highlight=False, soft_wrap=True)
        return UNOPENED if isinstance(error, OpenError) else MISUSED
    if not quiet:
        print_report(report, console)
    return FAILED if report.failed else PASSED


@contextmanager
def _tidy_hypothesis() -> Iterator[None]:
    """Hypothesis keeps notes in the current directory; a command has no business to leave any."""
    with tempfile.TemporaryDirectory(prefix="hicache-hypothesis-") as directory:
        set_hypothesis_home_dir(directory)
        try:
            yield
        finally:
            set_hypothesis_home_dir(None)
