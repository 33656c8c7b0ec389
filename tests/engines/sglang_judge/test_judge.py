"""The judge on SGLang's own file backend: what it must name, and how it answers bad input."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

FILE = "sglang.srt.mem_cache.hicache_storage:HiCacheFile"
MUST_NAME = {
    "missing integrity check",
    "a page that stays broken",
    "a key that leaves the root",
    "a clear that is too wide",
    'the shared suffix of "a/b" and "a-b"',
    "the host layout is not in the key",
}


def test_the_file_backend_of_sglang_is_judged(
    run_python: Callable[..., CompletedProcess[str]], tmp_path: Path
) -> None:
    """Every defect that is known by reading it is found by asking it, each with lines that reproduce it."""
    report = tmp_path / "f.json"
    done = run_python(
        "-m", "hicache_core", "conformance", "--sglang-class", FILE, "--json", str(report), "--level", "durable"
    )
    assert done.returncode == 1, done.stderr[-2000:]
    found = json.loads(report.read_text())
    assert found["versions"]["sglang"].startswith("0.5.")
    findings = {finding["defect"]: finding for finding in found["findings"]}
    assert findings.keys() >= MUST_NAME
    assert all(findings[defect]["reproduction"] for defect in MUST_NAME)
    held = {case["id"] for case in found["cases"] if case["outcome"] == "pass"}
    assert {"pages_come_back_as_they_were", "exists_is_the_leading_run", "two_models_share_no_key"} <= held
    assert found["contract"]["levels"].keys() == {"durable"}


def test_a_class_that_is_not_there_is_named_with_the_nearest(
    run_python: Callable[..., CompletedProcess[str]],
) -> None:
    """Bad input ends with code 2 and says what there is."""
    done = run_python("-m", "hicache_core", "conformance", "--sglang-class", FILE[:-1])
    assert done.returncode == 2
    assert "did you mean 'HiCacheFile'?" in done.stderr


def test_a_class_that_cannot_be_constructed_ends_with_code_3(
    run_python: Callable[..., CompletedProcess[str]], tmp_path: Path
) -> None:
    """What the class raised is told once."""
    (tmp_path / "broken_store.py").write_text(
        "from sglang.srt.mem_cache.hicache_storage import HiCacheFile\n\n\n"
        "class Broken(HiCacheFile):\n    def __init__(self, config, kwargs):\n        raise OSError('no such host')\n"
    )
    done = run_python(
        "-m", "hicache_core", "conformance", "--sglang-class", "broken_store:Broken", "-o", "path=generic"
    )
    assert done.returncode == 3, done.stderr[-1000:]
    assert "no such host" in done.stderr
