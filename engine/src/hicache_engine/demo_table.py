"""What a person sees of the demo."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.text import Text

from hicache_core.cli.output import out, table

TIERS = ("device", "host", "storage", "recomputed")


def show(report: dict[str, Any], path: Path) -> None:
    """Tables of the run, the cases and the checks, and where the report is."""
    out.print()
    out.print(
        table(
            "One prompt, two processes",
            ("", "process A (cold)", "process B (from L3)"),
            _run_rows(report),
            right=(1, 2),
        )
    )
    out.print()
    columns = ("case", *TIERS, "same text", "why the hits ended")
    out.print(table("What must not be used is computed again", columns, _case_rows(report), right=(1, 2, 3, 4)))
    out.print()
    checks = [(_mark(c.passed), c.name, c.detail) for c in report["checks"]]
    out.print(table("Checks", ("", "what must hold", "measured"), checks))
    failed = sum(not c.passed for c in report["checks"])
    verdict = "[bold green]all checks hold[/]" if report["ok"] else f"[bold red]{failed} checks failed[/]"
    out.print(f"\n{verdict} in {report['seconds']:.0f} s; report: {escape(str(path))}")


def show_outage(report: dict[str, Any], path: Path) -> None:
    """What came of an outage, phase by phase, and the checks."""
    phases: dict[str, list[Any]] = {}
    for turn in report["turns"]:
        phases.setdefault(turn.phase, []).append(turn)
    rows = [
        (
            phase,
            len(turns),
            sum(bool(turn.storage) for turn in turns),
            sum(bool(turn.failed) for turn in turns),
            sum(turn.wrong for turn in turns),
            f"{statistics.median(turn.ttft_ms for turn in turns):.0f} ms",
            f"{statistics.median(turn.alone_ms for turn in turns):.0f} ms",
        )
        for phase, turns in phases.items()
    ]
    columns = ("phase", "requests", "with hits", "failed", "wrong", "first token", "without L3")
    out.print(table(f"{report['backend']}: its server killed and started again", columns, rows, right=range(1, 7)))
    ratio, hit = report["miss_ttft_ratio"], report["seconds_to_first_hit"]
    back = "no hit came back" if hit is None else f"first hit {hit:g} s after the restart"
    out.print(f"misses: {ratio['median']}× without L3 (median of {ratio['count']}, worst {ratio['worst']}×); {back}")
    out.print(table("Checks", ("", "what must hold"), [(_mark(ok), name) for name, ok in report["checks"].items()]))
    out.print(f"report: {escape(str(path))}")


def _run_rows(report: dict[str, Any]) -> list[tuple[object, ...]]:
    tiers, ttft, diff = report["tokens_by_tier"], report["ttft_ms"], report["logits_max_abs_diff"]
    return [
        ("process id", report["pid_cold"], report["pid_warm"]),
        ("prompt tokens", report["prompt_tokens"], report["prompt_tokens"]),
        ("tokens from L3", 0, tiers["storage"]),
        ("tokens computed", report["prompt_tokens"], tiers["recomputed"]),
        (
            "time to first token, median",
            f"{ttft['cold']:.0f} ms",
            f"{ttft['warm']:.0f} ms ({ttft['ratio']:.1f}× sooner)",
        ),
        ("logits, max |Δ|, resumed at a chunk's end", "", f"{diff['aligned']:g}"),
        ("logits, max |Δ|, resumed elsewhere", "", f"{diff['unaligned']:.1e}"),
        ("answer", report["text"][:60], "the same" if report["text_equal"] else Text("different", "red")),
    ]


def _case_rows(report: dict[str, Any]) -> list[tuple[object, ...]]:
    return [
        (name, *(case["tokens_by_tier"][tier] for tier in TIERS), _mark(case["text_equal"]), case["reason"])
        for name, case in report["cases"].items()
    ]


def _mark(good: bool) -> Text:
    return Text("✓", "green") if good else Text("✗", "red")
