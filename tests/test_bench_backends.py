"""`make bench-backends` measures what it says, and tells what it cannot measure."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hicache_core.errors import OpenError
from hicache_core.plugin.bare_clients import BareCase
from hicache_core.storage.bare_memory import DictClient, no_store

SCRIPT = Path(__file__).resolve().parents[1] / "benchmarks/bench_backends.py"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = spec_from_file_location("bench_backends", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def test_the_command_gives_a_row_for_each_size_and_operation() -> None:
    command = [sys.executable, str(SCRIPT), "memory", "--rounds", "1", "--page-bytes", "4KiB,8KiB", "--json", "-"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    rows = [(row["operation"], row["page_bytes"]) for row in report["rows"]]
    assert rows == [("put", 4096), ("get", 4096), ("put", 8192), ("get", 8192)]
    assert all(row["client_mb_per_s"] > 0 < row["session_mb_per_s"] for row in report["rows"])
    assert (report["pages"], report["unmeasured"]) == (128, [])


def test_a_backend_without_a_client_is_refused_with_those_that_have_one() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "fault"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert "'fault' has no bare client" in done.stderr
    assert "memory" in done.stderr


def test_what_cannot_run_is_skipped_and_what_breaks_has_failed(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def absent(directory: Path, nbytes: int) -> Iterator[Mapping[str, Any]]:
        raise OpenError("no server: pip install it")
        yield {}

    class Liar(DictClient):
        """Reads nothing."""

        def get(self, keys: Any, slots: Any) -> None:
            """Nothing."""

    cases = [BareCase("a", absent, DictClient), BareCase("b", no_store, Liar), BareCase("c", no_store, DictClient)]
    monkeypatch.setattr(bench, "bare_cases", lambda _: cases)
    rows, missing = bench.run(["memory"], [4096], 1)
    assert {row.variant for row in rows} == {"c"}
    assert [(one.variant, one.failed) for one in missing] == [("a", False), ("b", True)]
    assert "pip install it" in missing[0].reason
    assert "other bytes than were stored" in missing[1].reason


@pytest.mark.skipif(sys.platform != "linux", reason="threads are kept on a CPU on Linux only")
def test_workers_are_kept_apart_where_the_case_does_not_say_otherwise(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[tuple[int, ...]] = []
    real = bench.open_session

    def spy(*args: Any, **more: Any) -> Any:
        used.append(more["settings"].worker_cpus)
        return real(*args, **more)

    monkeypatch.setattr(bench, "open_session", spy)
    cases = [BareCase("a", no_store, DictClient), BareCase("b", no_store, DictClient, workers_apart=False)]
    monkeypatch.setattr(bench, "bare_cases", lambda _: cases)
    _, missing = bench.run(["memory"], [4096], 1)
    assert (used, missing) == ([tuple(sorted(os.sched_getaffinity(0))), ()], [])
