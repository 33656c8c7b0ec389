"""The guide "Write a backend" goes through the generated files line by line: every line, in order, no other code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hicache_core.scaffold.writing import render

GUIDE = Path(__file__).resolve().parents[2] / "docs/guides/write-a-backend.md"
BLOCK = re.compile(r"<!-- file: (?P<file>\S+) -->|^```(?:python|toml)\n(?P<code>.*?)^```", re.MULTILINE | re.DOTALL)


def told() -> dict[str, list[str]]:
    """The code of each file as the guide shows it, without blank lines."""
    files: dict[str, list[str]] = {}
    current = ""
    for found in BLOCK.finditer(GUIDE.read_text(encoding="utf-8")):
        if found["file"]:
            current = found["file"]
        else:
            files.setdefault(current, []).extend(lines(found["code"]))
    return files


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


@pytest.mark.parametrize(
    "file",
    [
        "pyproject.toml",
        "src/hicache_acme/plugin.py",
        "src/hicache_acme/backend.py",
        "src/hicache_acme/backdoor.py",
        "tests/test_conformance.py",
    ],
)
def test_the_guide_shows_every_line(file: str) -> None:
    assert told()[file] == lines(render("acme")[file])


def test_the_guide_shows_no_other_code() -> None:
    assert set(told()) <= set(render("acme"))
