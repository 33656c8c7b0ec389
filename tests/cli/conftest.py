"""Running `hicache` as a person does: arguments in; exit code, output and errors out. In this process, for speed."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hicache_core.cli.app import main


@dataclass(frozen=True)
class Ran:
    """What a command said."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def hicache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Ran]:
    """`hicache(*arguments)` in an empty directory, without any HICACHE_ variable."""
    for name in [name for name in os.environ if name.startswith("HICACHE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "setswitchinterval", lambda seconds: None)

    def run(*arguments: str | Path, env: dict[str, str] | None = None) -> Ran:
        with monkeypatch.context() as scoped:
            scoped.setattr(sys, "argv", ["hicache", *map(str, arguments)])
            for name, value in (env or {}).items():
                scoped.setenv(name, value)
            capsys.readouterr()
            with pytest.raises(SystemExit) as ended:
                main()
        captured = capsys.readouterr()
        return Ran(int(ended.value.code or 0), captured.out, captured.err)

    return run
