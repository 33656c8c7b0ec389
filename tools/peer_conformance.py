"""Writes docs/peer-conformance.md: SGLang's own storage classes, judged. usage: tools/peer_conformance.py [--reuse]

Sets up a real SGLang below .peers (tools/peers/sglang.sh) where there is none, judges each class in a process of its
own, two at a time, keeps the JSON reports in .peers/sglang/reports, and writes the page: three quarters of an hour,
most of it mooncake's. SGLANG_PEER names another set-up. --reuse judges only what has no report there yet.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
REPORTS = Path(os.environ.get("SGLANG_PEER") or REPOSITORY / ".peers" / "sglang") / "reports"
PAGE = REPOSITORY / "docs" / "peer-conformance.md"
REPRODUCTIONS = REPOSITORY / "conformance" / "src" / "hicache_conformance" / "peer" / "reproductions"
SEED = "1"
STORAGE = "sglang.srt.mem_cache.storage"
JUDGED = {
    "file": "sglang.srt.mem_cache.hicache_storage:HiCacheFile",
    "nixl": f"{STORAGE}.nixl.hicache_nixl:HiCacheNixl",
    "hf3fs": f"{STORAGE}.hf3fs.storage_hf3fs:HiCacheHF3FS",
    "mooncake": f"{STORAGE}.mooncake_store.mooncake_store:MooncakeStore",
    "seaweedfs": f"{STORAGE}.seaweedfs.seaweedfs_store:SeaweedFSStore",
}
LEVELS = ("core", "zero_copy", "hybrid")
EVERY_LEVEL = ("file",)
"""Classes that are asked for all levels. For the others hostile has no way past the class, and durable and shared,
where they are declared, take more than a quarter of an hour."""
SLOWEST_FIRST = ("mooncake", "file", "hf3fs", "seaweedfs", "nixl")
NOT_JUDGED = {
    "aibrix, eic, mori, npu_memcache, simm, tensorcast": "their clients are not in the set-up; not tried",
    "lmcache, flexkv": "they replace SGLang's cache and are no HiCacheStorage",
    "shm, sim": "they keep no bytes, by design: a stand-in that shares the host pool, and a simulator",
}
SLASH = 'a "/" in a key, which hicache allows and SGLang does not send'
LENGTH = "a length that is not checked, or an error in place of an answer"
BROKEN = "a page that stays broken (the interface has neither replace nor delete)"
WIDE_CLEAR = "a clear that is too wide"
ANEW = "a set of a known key writes its page anew, where hicache keeps the first"
AS_ONE = "a batch with a missing page in it is answered as one: all of its pages are misses"
HOLE = "a hole in a batch gives the page behind it wrong bytes"
NO_MODEL = "the model is not in the key"
UNCHECKED = "keys that are not checked"
ARE_DEFECTS = (WIDE_CLEAR, HOLE, NO_MODEL)
"""Causes that the judge's own cases find: a class is said to have one only where they did."""
CAUSES_BY_REASON = {
    r"^set of the new key|^set of '.*/.*/.*' answered UNAVAILABLE": SLASH,
    r"that clear says it removed": "clear() does not say how many pages it removed",
    r"expected <Outcome.CORRUPT.*, found <Outcome.MISS": "a page of another length is a miss: no word for corrupt",
    r"^bytes read for|^bytes of [0-9a-f]+…|while it was being set|^in a history: page .* byte": ANEW,
    r"(between missing ones|shuffled batch|missing, a, b\]): expected": AS_ONE,
    r"with holes: .*found \[<Outcome.MISS|^get of page \d+ of pool .*found <Outcome.MISS": AS_ONE,
    r"(between missing ones|shuffled batch|with duplicates): byte": HOLE,
    r"with holes: .*found .*FOREIGN|^get of page \d+ of pool .*FOREIGN": HOLE,
    r"before it was set: exp|second namespace: exp|absent key": NO_MODEL,
    r"pages stored under|session that differs|found \[<Outcome.FOREIGN": NO_MODEL,
    r"exists promised .*the get after it missed": "a page is found before it is whole",
    r"more descriptors": "connections that close() leaves open",
}
"""What a failed case says, where that tells its cause; else the case does."""
CAUSES_BY_CASE = {
    LENGTH: (
        "a_shorter_stored_page_is_corrupt",
        "a_longer_stored_page_is_corrupt",
        "a_wrong_length_leaves_the_store_as_it_was",
        "one_bad_page_spares_its_neighbours",
        "a_truncated_page_is_a_miss_and_heals",
        "a_page_that_grew_is_a_miss_and_heals",
        "a_directory_in_place_of_a_page_is_no_page",
        "damage_is_seen_on_every_path",
    ),
    BROKEN: ("a_flipped_bit_is_a_miss_and_heals", "zeros_in_place_of_a_page_are_a_miss_and_heal"),
    WIDE_CLEAR: (
        "clear_removes_only_its_namespace",
        "clear_and_scan_refuse_a_name_outside_the_rule",
        "foreign_files_are_left_alone",
        "two_instances_with_two_namespaces_share_nothing",
        "sessions_of_different_identities_share_nothing",
        "a_process_that_clears_takes_only_its_namespace",
    ),
    UNCHECKED: (
        "no_key_leads_out_of_the_root",
        "an_illegal_key_touches_nothing",
        "an_upper_case_key_is_not_its_lower_case_twin",
    ),
}
_CAUSE_OF = {case: cause for cause, cases in CAUSES_BY_CASE.items() for case in cases}


def main(reuse: bool) -> None:
    """Judge, and write the page."""
    REPORTS.mkdir(parents=True, exist_ok=True)
    if not reuse:
        for name in JUDGED:
            (REPORTS / f"{name}.json").unlink(missing_ok=True)
    missing = [name for name in SLOWEST_FIRST if not (REPORTS / f"{name}.json").is_file()]
    with ThreadPoolExecutor(2) as pool:
        codes = dict(zip(missing, pool.map(_judge, missing), strict=True))
    broken = [
        f"{name} (exit code {code}, {REPORTS / name}.log)" for name, code in codes.items() if code not in (0, 1)
    ]
    if broken:
        raise SystemExit(f"could not be judged: {', '.join(broken)}")
    PAGE.write_text(page({name: json.loads((REPORTS / f"{name}.json").read_text()) for name in JUDGED}))


def _judge(name: str) -> int:
    judge = str(REPOSITORY / "tools" / "judge_sglang.sh")
    command = ["sh", judge, JUDGED[name], str(REPORTS / f"{name}.json"), "--seed", SEED]
    command += [] if name in EVERY_LEVEL else [word for level in LEVELS for word in ("--level", level)]
    sys.stderr.write(f"judging {name}: {' '.join(command)}\n")
    with (REPORTS / f"{name}.log").open("wb") as log:
        code = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=log, check=False).returncode
    sys.stderr.write(f"judged {name}: exit code {code}\n")
    return code


def page(reports: dict[str, dict[str, Any]]) -> str:
    """The page's text."""
    first = next(iter(reports.values()))["versions"]
    parts = [
        "<!-- Generated by tools/peer_conformance.py; running it writes this page again. -->",
        "# SGLang's storage classes, judged",
        f"SGLang {first['sglang']}, torch {first['torch']}, Python {first['python']}, without a GPU. Each class was"
        " asked by itself, with pages that carry no seal of hicache's, the way SGLang's cache controller asks it;"
        " then levels of the suite were run through [the backend"
        " `sglang`](../hicache_core/adapters/sglang_backend/__init__.py). Cases of a session run behind hicache's"
        " guard, which answers a damaged or foreign page with a miss; the other cases ask the class as it is, by"
        " hicache's rules, some of which SGLang's interface cannot keep."
        f" {', '.join(EVERY_LEVEL)} was asked for all levels, the others for {', '.join(LEVELS)}."
        " Where no cause stands beside a failed case, it was not looked for. One class again, with every detail:",
        "```\nmake judge-sglang CLASS=MODULE:CLASS JSON=report.json\n```",
        _overview(reports),
    ]
    parts += [_section(name, report) for name, report in reports.items()]
    parts.append("## Not judged\n\n| backend | why |\n|---|---|\n" + _rows(NOT_JUDGED.items()))
    return "\n\n".join(parts) + "\n"


def _overview(reports: dict[str, dict[str, Any]]) -> str:
    defects: dict[str, list[str]] = {}
    for name, report in reports.items():
        for finding in report["findings"]:
            defects.setdefault(finding["defect"], []).append(f"[{name}](#{name})")
    return "| defect | found in |\n|---|---|\n" + _rows((d, ", ".join(names)) for d, names in defects.items())


def _section(name: str, report: dict[str, Any]) -> str:
    parts = [f"## {name}", f"`{report['sglang_class']}`. {report['note']}".strip()]
    rows = [(f["defect"], _short(f["reason"]), f"`{f['case']}`") for f in report["findings"]]
    parts.append("| defect | what was seen | case |\n|---|---|---|\n" + _rows(rows))
    held = [f"`{case['id']}`" for case in report["cases"] if case["outcome"] == "pass"]
    parts.append(f"Holds: {', '.join(held)}.")
    skipped: dict[str, list[str]] = {}
    for case in report["cases"]:
        if case["outcome"] == "skip":
            skipped.setdefault(_short(case["reason"]), []).append(f"`{case['id']}`")
    parts += [f"Not judged, since {reason}: {', '.join(ids)}." for reason, ids in skipped.items()]
    parts.append(_contract(report))
    for finding in report["findings"]:
        program = REPRODUCTIONS / name / f"{finding['case']}.py.txt"
        if program.is_file():
            parts.append(f"### {name}: {finding['defect']}\n\n```python\n{program.read_text().rstrip()}\n```")
    return "\n\n".join(parts)


def _contract(report: dict[str, Any]) -> str:
    contract = report["contract"]
    if contract is None:
        return f"The suite: {report['contract_note']}."
    marks = ", ".join(f"{level} {mark}" for level, mark in contract["levels"].items())
    failed = [case for case in contract["cases"] if case["outcome"] in ("fail", "error")]
    defects = {finding["defect"] for finding in report["findings"]}
    rows = [(f"`{c['id']}`", _short(c["reason"]), _cause(c, defects)) for c in failed]
    table = "\n\n| case of the suite | what was seen | comes from |\n|---|---|---|\n" + _rows(rows) if rows else ""
    note = f" ({report['contract_note']})" if report["contract_note"] else ""
    counts = contract["counts"]
    told = f"{counts['pass']} cases pass, {len(failed)} fail, {counts['skip']} are skipped"
    return f"The suite's levels{note}: {marks}. {told}.{table}"


def _cause(case: dict[str, Any], defects: set[str]) -> str:
    """Where a failed case comes from; nothing where no rule tells, or where the class by itself did not show it."""
    reason = " ".join(case["reason"].split())
    found = (cause for pattern, cause in CAUSES_BY_REASON.items() if re.search(pattern, reason))
    cause = next(found, _CAUSE_OF.get(case["id"], ""))
    return "" if cause in ARE_DEFECTS and cause not in defects else cause


def _rows(rows: Any) -> str:
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in rows)


def _short(text: str) -> str:
    """Without what differs from run to run: directories, names, addresses."""
    text = re.sub(r"/tmp/hicache-[\w-]+", "/tmp/…", " ".join(text.split()))
    text = re.sub(r"\b[0-9a-f]{24,}", "…", text)
    text = re.sub(r"(/d){8,}", "/d/d/…", text)
    text = text.partition(" [seed ")[0]
    return text if len(text) <= 220 else f"{text[:219]}…"


if __name__ == "__main__":
    main("--reuse" in sys.argv[1:])
