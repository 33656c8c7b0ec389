"""What a person sees of the demo."""

from __future__ import annotations

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
