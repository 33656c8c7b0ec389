"""Where the peer is, and how a test gets into its interpreter."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

SET_UP = "SGLang is not importable here: tools/peers/sglang.sh; . .peers/sglang/env.sh; $PEER_PY -m pytest {}"


@pytest.fixture
def sglang() -> None:
    """Skips where SGLang does not import, with the commands that change it."""
    needed = ("sglang", "torch", "orjson", "transformers")  # the last two: a wheel alone on the path is not enough
    if any(importlib.util.find_spec(module) is None for module in needed):
        pytest.skip(SET_UP.format("tests/engines/sglang_judge"))


@pytest.fixture
def run_python(sglang: None, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs this interpreter in an empty directory; SGLang warns a lot, so warnings are off."""

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-W", "ignore", *arguments],
            cwd=tmp_path,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )

    return run
