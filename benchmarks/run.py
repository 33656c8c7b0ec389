"""`make bench`: every number the project promises, measured in one run, as a table and as JSON.

Rounds alternate between the two sides of each ratio, and medians are compared, so that a machine whose speed
drifts does not decide. Exit code 1 where a promise is not kept.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import bench_file
import bench_hash
import bench_stack
import bench_staging
import bench_tree
import bench_ttft
import msgspec
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from hicache_core.cli.output import err, out, table, write_json


class Row(msgspec.Struct, frozen=True):
    """One promise. value and limit are in `unit`; at_most says which side of the limit is the good one."""

    group: str
    what: str
    value: float
    limit: float
    at_most: bool
    unit: str
    detail: str = ""

    @property
    def kept(self) -> bool:
        """Whether the promise holds in this run."""
        return self.value <= self.limit if self.at_most else self.value >= self.limit


class Skipped(msgspec.Struct, frozen=True):
    """What could not be measured here, and why."""

    group: str
    reason: str


Found = Iterator[Row | Skipped]


def tree(rounds: int) -> Found:
    """Match and insert against SGLang's tree cores, and against ourselves at another size."""
    found = bench_tree.measure(rounds)
    for line in found["rows"]:
        detail = f"{line['ours_us']:.1f} µs; {line['against']} {line['base_us']:.1f} µs"
        wanted = line["against"] != "SGLang python"
        if wanted:
            yield Row("tree", f"{line['what']}, × {line['against']}", line["ratio"], line["limit"], True, "×", detail)
    if found["skipped"]:
        yield Skipped("tree", found["skipped"])


def page_hash(rounds: int) -> Found:
    """Page hashes against a bare hashlib loop."""
    found = bench_hash.measure(rounds)
    detail = f"{found['ours_ms']:.2f} ms; bare {found['bare_ms']:.2f} ms"
    yield Row("hash", "128k tokens, page 64, × bare hashlib loop", found["ratio"], 1.3, True, "×", detail)


def file(rounds: int) -> Found:
    """The file backend through a session, against bare system calls and SGLang's file backend."""
    found = bench_file.measure(rounds)
    for what, verdict in found["verdicts"].items():
        at_most = "at_most" in verdict
        limit = verdict["at_most"] if at_most else verdict["at_least"]
        yield Row("file", what, verdict["value"], limit, at_most, "ms" if at_most else "×")
    for what, reason in found["skipped"].items():
        yield Skipped(f"file: {what}", reason)


def stack(rounds: int) -> Found:
    """What session, guard and dispatch cost over the bare memory backend."""
    found = bench_stack.measure(rounds)
    for operation, limit in bench_stack.LIMITS_US.items():
        detail = f"session {found[f'{operation}_session_us']:.0f} µs, bare {found[f'{operation}_bare_us']:.0f} µs"
        what = f"{operation} of 128 sealed 4 KiB pages, own cost"
        yield Row("stack", what, found[f"{operation}_cost_us"], limit, True, "µs", detail)


def staging(rounds: int) -> Found:
    """Memory beyond the pools."""
    for case in bench_staging.measure():
        yield Row("memory", f"staging per worker, {case.what}", case.per_worker, case.limit, True, "bytes")


def ttft(rounds: int) -> Found:
    """What enabling L3 adds to the time to first token when there is nothing to find."""
    for name, found in bench_ttft.measure(rounds).items():
        if "skipped" in found:
            yield Skipped(f"ttft: {name}", found["skipped"])
            continue
        detail = f"without {found['without_ms']:.1f} ms, with {found['with_ms']:.1f} ms"
        yield Row(
            "ttft", f"added by an empty L3, {name} model", found["added_ms"], found["limit_ms"], True, "ms", detail
        )


GROUPS: dict[str, Callable[[int], Found]] = {
    "tree": tree,
    "hash": page_hash,
    "file": file,
    "stack": stack,
    "memory": staging,
    "ttft": ttft,
}


def main() -> int:
    """Measure the groups that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"some of {', '.join(GROUPS)}; default: all")
    parser.add_argument("--rounds", type=int, default=5, help="counted rounds, at least 5 for a report")
    parser.add_argument("--json", metavar="FILE", help="write the report there; - is standard output")
    chosen = parser.parse_args()
    unknown = [group for group in chosen.groups if group not in GROUPS]
    if unknown:
        parser.error(f"unknown group {unknown[0]!r}; known: {', '.join(GROUPS)}")
    rows: list[Row] = []
    skipped: list[Skipped] = []
    with Progress(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=err) as progress:
        for group in chosen.groups or GROUPS:
            task = progress.add_task(group, total=1)
            for found in GROUPS[group](chosen.rounds):
                (rows if isinstance(found, Row) else skipped).append(found)  # type: ignore[arg-type]
            progress.advance(task)
    report = {
        "machine": machine(),
        "rounds": chosen.rounds,
        "rows": [as_dict(row) for row in rows],
        "skipped": skipped,
    }
    if chosen.json:
        write_json(report, chosen.json)
    if chosen.json != "-":
        show(rows, skipped)
    return int(not all(row.kept for row in rows))


def show(rows: list[Row], skipped: list[Skipped]) -> None:
    """The table."""
    shown = [
        (
            row.group,
            row.what,
            f"{row.value:,.2f} {row.unit}",
            f"{'≤' if row.at_most else '≥'} {row.limit:,.2f}",
            Text("kept", "green") if row.kept else Text("missed", "red"),
            row.detail,
        )
        for row in rows
    ]
    out.print(table("Promises", ("group", "what", "measured", "promised", "", "detail"), shown, right=(2, 3)))
    for one in skipped:
        out.print(f"[yellow]skipped[/] {one.group}: {one.reason}", markup=True)


def as_dict(row: Row) -> dict[str, Any]:
    """A row for the report."""
    return {**msgspec.structs.asdict(row), "kept": row.kept}


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    return {"python": platform.python_version(), "machine": platform.machine(), "cpus": os.cpu_count()}


if __name__ == "__main__":
    Path(".bench").mkdir(exist_ok=True)
    sys.exit(main())
