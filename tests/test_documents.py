"""What the documents say is what the code does."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from hicache_core.controller.reasons import Reason
from hicache_core.errors import UnknownNameError
from hicache_core.plugin.discovery import find_backend
from hicache_core.plugin.options import describe_options
from hicache_core.plugin.select import choose_backend

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("*/README.md"), *ROOT.glob("*/*/README.md")]
)
PAGES = [page for page in PAGES if not any(part.startswith(".") for part in page.relative_to(ROOT).parts)]
PLUGINS = [page for page in PAGES if page.parent.parent == ROOT / "plugins"]

OURS = {"hicache_core", "hicache_file", "hicache_conformance", "hicache_engine"}


def test_the_reference_is_current() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs/generate_reference.py"), "--check"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text()
    targets = [target for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text) if "://" not in target]
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert not missing, f"{page.name} links to {missing}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_blocks_parse_and_import_what_exists(page: Path) -> None:
    for block in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
        for node in ast.walk(ast.parse(textwrap.dedent(block))):
            if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] in OURS:
                pytest.importorskip(str(node.module).partition(".")[0], reason="another distribution")
                exec(compile(ast.Module([node], []), str(page), "exec"), {})


@pytest.mark.parametrize("page", PLUGINS, ids=lambda page: page.parent.name)
def test_a_plugins_options_stand_in_its_table_and_its_configs_are_taken(page: Path) -> None:
    name, text = page.parent.name, page.read_text()
    try:
        spec = find_backend(name)
    except UnknownNameError as error:
        pytest.skip(f"the plugin is not installed: {error}")
    table = text.partition("## Options")[2].partition("\n## ")[0] or text
    rows = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert rows == [option.name for option in describe_options(spec.options)]
    for config in re.findall(r"^```json\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        assert choose_backend(json.loads(config)).spec.name == name


def test_the_readme_names_two_set_up_commands() -> None:
    text = (ROOT / "README.md").read_text()
    block = text.split("<!-- setup:begin -->")[1].split("<!-- setup:end -->")[0]
    assert re.findall(r"^make .*$", block, re.MULTILINE) == ["make demo", "make test"]


def test_coverage_names_every_requirement_once() -> None:
    spec = ROOT.parent / "shared" / "SPEC.md"
    if not spec.exists():
        pytest.skip(f"the requirement table is not beside the project ({spec.name} in ../shared)")
    wanted = re.findall(r"^\| ([A-Z]\d+) \|", spec.read_text(), re.MULTILINE)
    told = re.findall(r"^\| ([A-Z]\d+) \|", (ROOT / "docs/coverage.md").read_text(), re.MULTILINE)
    assert sorted(told) == sorted(wanted)


def test_coverage_names_tests_that_exist() -> None:
    text = (ROOT / "docs/coverage.md").read_text()
    paths = re.findall(r"`((?:tests|plugins|conformance|engine|benchmarks|docs|examples)/[\w/.-]+)`", text)
    assert paths, "docs/coverage.md names no test"
    missing = [path for path in paths if not (ROOT / path).exists()]
    assert not missing, missing


def test_the_operators_guide_explains_every_reason() -> None:
    text = (ROOT / "docs/guides/operate.md").read_text()
    missing = [reason.value for reason in Reason if f"`{reason.value}`" not in text]
    assert not missing, missing
