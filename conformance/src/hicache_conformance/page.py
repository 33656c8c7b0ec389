"""The report as one HTML page that needs nothing beside it: levels first, then what did not hold, then everything."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files

from hicache_conformance.casebook import Case, catalogue
from hicache_conformance.report import FAILURES, OUTCOMES, Appendix, CaseResult, Report
from hicache_core.plugin.sizes import format_size
from hicache_core.storage.measure import Speed

_SIGNS = {"pass": "✓ earned", "partial": "◐ partial", "fail": "✕ failed", "not_declared": "– not declared"}
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""What the page may load: nothing. The browser holds it to that, whatever a store's message contains."""


def to_html(report: Report) -> str:
    """The page. Every text from a store, a plugin or an option is escaped."""
    cases = {case.id: case for case in catalogue()}
    parts = [
        _head(report),
        _levels(report),
        _failures(report, cases),
        _excused(report, "xfail", "Excused by the author"),
        _excused(report, "skip", "Skipped, and why"),
        _beside(report),
        _appendix(report.appendix),
        _all_cases(report, cases),
        _facts(report),
    ]
    style = files("hicache_conformance").joinpath("assets/report.css").read_text(encoding="utf-8")
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(report.backend)}: hicache conformance</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        + "\n".join(filter(None, parts))
        + "\n</body>\n</html>\n"
    )


def _head(report: Report) -> str:
    counts = report.counts
    failed = counts["fail"] + counts["error"]
    earned = f"earned {', '.join(report.earned)}" if report.earned else "earned no level"
    said = f"{escape(report.backend)} {earned}; " + (_failing(failed) if failed else "no case fails.")
    fake = f'<p class="fake"><b>Fake store.</b> {escape(report.fake_sentence)}</p>' if report.fake else ""
    return (
        f'<header>\n<p class="over">hicache conformance</p>\n<h1>{escape(report.backend)}</h1>\n'
        f'<p class="verdict">{said}</p>\n{fake}\n</header>'
    )


def _failing(failed: int) -> str:
    return "1 case does not hold." if failed == 1 else f"{failed} cases do not hold."


def _levels(report: Report) -> str:
    tiles = []
    for level, mark in report.levels.items():
        found = [r.outcome for r in report.cases if r.level == level]
        counts = ", ".join(f"{found.count(o)} {o}" for o in OUTCOMES if o in found) or "no case ran"
        if mark == "not_declared":
            counts = "the store does not claim it"
        tiles.append(
            f'<li class="{mark}"><b>{escape(level)}</b> <span class="mark">{_SIGNS[mark]}</span><br>'
            f"<small>{counts}</small></li>"
        )
    return f'<ul class="levels">\n{"".join(tiles)}\n</ul>'


def _failures(report: Report, cases: dict[str, Case]) -> str:
    told = [_failure(report, r, cases.get(r.id)) for r in report.cases if r.outcome in FAILURES]
    return "<h2>What does not hold</h2>\n" + "\n".join(told) if told else ""


def _failure(report: Report, result: CaseResult, case: Case | None) -> str:
    rule = f'<p class="soft">{escape(case.rule)}: {escape(case.summary)}</p>' if case else ""
    return (
        f'<section class="case">\n<h3>{escape(result.level)}/{escape(result.id)} '
        f'<span class="mark {result.outcome}">{result.outcome}</span></h3>\n{rule}'
        f"<pre>{escape(result.reason)}</pre>\n<p>Run it again: <code>{escape(report.reproduce(result.id))}</code></p>"
        "\n</section>"
    )


def _excused(report: Report, outcome: str, title: str) -> str:
    rows = [(f"{escape(r.level)}/{escape(r.id)}", escape(r.reason)) for r in report.cases if r.outcome == outcome]
    return _section(title, ("case", "reason"), rows)


def _beside(report: Report) -> str:
    rows = [(f"{escape(r.level)}/{escape(r.id)}", escape(r.reason)) for r in report.results if r.not_applicable]
    return _section("Does not concern this store", ("case", "reason"), rows)


def _appendix(appendix: Appendix | None) -> str:
    if appendix is None:
        return ""
    fastest = max((max(s.set_mb_per_s, s.get_mb_per_s) for s in appendix.speeds), default=1.0)
    rows = [_speed(speed, fastest) for speed in appendix.speeds]
    notes = "".join(f"<li>{escape(text)}</li>" for text in appendix.skipped)
    pages = appendix.speeds[0].pages if appendix.speeds else 0
    head = ("page", "put MB/s", "", "get MB/s", "", f"exists of {pages}, µs", "failed")
    table = _table(head, rows, numbers=(1, 3, 5, 6)) if rows else ""
    return (
        "<h2>Appendix: throughput</h2>\n"
        '<p class="soft">Through a session that seals and verifies, on this machine, in this run. '
        "It decides nothing.</p>\n"
        f"{table}{f'<ul>{notes}</ul>' if notes else ''}"
    )


def _speed(speed: Speed, fastest: float) -> tuple[str, ...]:
    return (
        format_size(speed.page_bytes),
        f"{speed.set_mb_per_s:,.0f}",
        _meter(speed.set_mb_per_s, fastest),
        f"{speed.get_mb_per_s:,.0f}",
        _meter(speed.get_mb_per_s, fastest),
        f"{speed.exists_us:,.0f}",
        str(speed.failed),
    )


def _meter(value: float, most: float) -> str:
    return f'<meter min="0" max="{most:.0f}" value="{value:.0f}">{value:.0f}</meter>'


def _all_cases(report: Report, cases: dict[str, Case]) -> str:
    parts = ["<h2>Every case</h2>"]
    for level in report.levels:
        found = [r for r in report.cases if r.level == level]
        rows = [
            (
                f'<span class="mark {r.outcome}">{r.outcome}</span>',
                escape(r.id),
                escape(cases[r.id].summary) if r.id in cases else "",
                f"{r.seconds:.2f}",
            )
            for r in found
        ]
        table = _table(("", "case", "what it proves", "s"), rows, numbers=(3,)) if rows else "<p>None ran.</p>"
        total = f"{len(found)} {'case' if len(found) == 1 else 'cases'}"
        parts.append(f"<details>\n<summary>{escape(level)}: {total}</summary>\n{table}\n</details>")
    return "\n".join(parts)


def _facts(report: Report) -> str:
    versions = [(escape(name), escape(version)) for name, version in report.versions.items()]
    options = [(escape(name), escape(str(value))) for name, value in report.options.items()]
    run = [
        ("started", escape(report.started or "–")),
        ("took", f"{report.seconds:.1f} s"),
        ("seed", str(report.seed)),
        ("run it again", f"<code>{escape(report.reproduce())}</code>"),
    ]
    return "\n".join(
        (
            _section("Run", ("", ""), run),
            _section("Versions", ("what", "version"), versions),
            _section("Options", ("option", "value"), options),
        )
    )


def _section(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return f"<h2>{title}</h2>\n{_table(head, rows)}" if rows else ""


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    """Cells are HTML already."""

    def line(tag: str, cells: Sequence[str]) -> str:
        made = (f"<{tag}{' class=number' if i in numbers else ''}>{cell}</{tag}>" for i, cell in enumerate(cells))
        return f"<tr>{''.join(made)}</tr>"

    top = f"<thead>{line('th', head)}</thead>\n" if any(head) else ""
    return f"<table>\n{top}<tbody>\n" + "\n".join(line("td", row) for row in rows) + "\n</tbody>\n</table>"
