"""The examples do what their documentation says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def test_the_example_engine_serves_from_every_tier() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples/embed.py")], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == [
        "first a: 0 device, 0 host, 0 storage, 83 recomputed",
        "first b: 80 device, 0 host, 0 storage, 3 recomputed",
        "second a: 0 device, 0 host, 80 storage, 3 recomputed",
        "second b: 80 device, 0 host, 0 storage, 3 recomputed",
    ]


def test_the_example_backend_is_conformant(tmp_path: Path) -> None:
    pytest.importorskip(
        "hicache_conformance", reason="the suite is another distribution: pip install hicache-conformance"
    )
    report = tmp_path / "report.json"
    done = subprocess.run(
        [
            sys.executable, "-m", "hicache_core", "conformance", "dynamic", "-o", "module=sqlite_backend",
            "-o", "class_name=SqliteBackend", "-o", f"path={tmp_path / 'pages.db'}",
            "--level", "core", "--json", str(report),
        ],
        capture_output=True, text=True, timeout=300, check=False, cwd=ROOT / "examples",
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(report.read_text())["levels"]["core"] == "pass"
