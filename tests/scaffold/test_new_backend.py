"""`hicache new-backend`: what it writes is sound as it is, and what it cannot write it refuses with the mend."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hicache_core.cli.app import app
from hicache_core.errors import ConfigError
from hicache_core.scaffold.names import OURS, check_name, class_of, module_of, suggestion
from hicache_core.scaffold.writing import render, write_backend

ROOT = Path(__file__).resolve().parents[2]
SUITE = "the suite is another distribution: pip install hicache-conformance"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A new distribution, and the environment of a process in which it is installed."""
    pytest.importorskip("hatchling", reason="builds the new distribution: pip install hatchling")
    base = tmp_path_factory.mktemp("new")
    directory, place = base / "dist", base / "site"
    answer = CliRunner().invoke(app, ["new-backend", "my-store", str(directory)])
    assert answer.exit_code == 0, answer.output
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    quiet = os.environ | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = run([*pip, "--target", str(place), str(directory)], base, quiet)
    assert done.returncode == 0, done.stdout + done.stderr
    return directory, os.environ | {"PYTHONPATH": str(place), "PYTHONDONTWRITEBYTECODE": "1"}


def run(command: list[str], where: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=where, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


def test_it_earns_the_level_core_when_first_run(installed: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    pytest.importorskip("hicache_conformance", reason=SUITE)
    report = tmp_path / "report.json"
    hicache = [sys.executable, "-m", "hicache_core", "conformance", "my-store"]
    done = run([*hicache, "--level", "core", "--seed", "1", "--json", str(report)], tmp_path, installed[1])
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(report.read_text())
    assert found["levels"] == {"core": "pass"}
    assert found["versions"]["hicache-my-store"] == "0.1.0"


def test_its_own_tests_pass(installed: tuple[Path, dict[str, str]]) -> None:
    pytest.importorskip("hicache_conformance", reason=SUITE)
    few = "overridden or empty_batch or reopen or flipped"
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "-k", few]
    done = run(command, *installed)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " skipped" not in done.stdout
    assert "TestMyStore" in run([*command, "--collect-only"], *installed).stdout


def test_it_is_found_by_name_and_url(installed: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    code = (
        "from hicache_core.plugin.select import choose_backend\n"
        "print(choose_backend('my-store', {'path': 'x'}).options, choose_backend('my-store://?path=y').options)"
    )
    done = run([sys.executable, "-c", code], tmp_path, installed[1])
    assert done.stdout.split() == ["Options(path='x')", "Options(path='y')"], done.stderr


def test_the_backend_has_fewer_than_80_lines_and_all_of_it_is_python() -> None:
    files = render("my-store")
    assert len(files["src/hicache_my_store/backend.py"].splitlines()) < 80
    for path, text in files.items():
        assert "$" not in text
        if path.endswith(".py"):
            ast.parse(text)
            assert max(map(len, text.splitlines())) <= 118, path


def test_the_generated_code_is_clean(tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="pip install mypy")
    write_backend("my-store", tmp_path / "new")
    ruff = [sys.executable, "-m", "ruff"]
    for check in (["check", "--select", "E,F,W,B,UP,SIM"], ["format", "--check"]):
        config = ["--isolated", "--line-length", "118"]
        done = run([*ruff, *check, *config, str(tmp_path / "new")], tmp_path, dict(os.environ))
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("MyStore", "try 'my-store'"),
        ("my_store", "try 'my-store'"),
        ("3fs", "try 'fs'"),
        ("a--b", "try 'a-b'"),
        ("", "cannot be a backend's name"),
        ("../x", "try 'x'"),
        ("x" * 41, "at most 40"),
        ("hicache-acme", "'acme'"),
        ("file", "taken"),
        ("mooncake", "taken"),
        ("memory", "hicache-core"),
        ("dynamic", "taken"),
    ],
)
def test_a_name_that_cannot_be_is_refused_with_one_that_can(name: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        write_backend(name, tmp_path / "new")
    assert said in str(refused.value)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", ["acme", "a", "s4", "my-own-store"])
def test_a_name_that_can_be_is_taken_as_it_is(name: str) -> None:
    assert check_name(name) == suggestion(name) == name


def test_names_of_module_and_classes() -> None:
    assert (module_of("my-s3-store"), class_of("my-s3-store")) == ("hicache_my_s3_store", "MyS3Store")


def test_names_of_this_project_are_known() -> None:
    held = {path.parent.name for path in ROOT.glob("plugins/*/pyproject.toml")} | {"conformance", "engine", "core"}
    assert held <= set(OURS)


def test_a_directory_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"not empty.*notes\.txt"):
        write_backend("acme", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_place_that_is_no_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ConfigError, match="cannot be written"):
            write_backend("acme", place)


def test_an_empty_directory_will_do(tmp_path: Path) -> None:
    assert len(write_backend("acme", tmp_path)) == len(render("acme"))
