"""Dependencies point one way, and what must be light to import is."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hicache_core.config.documents import read_document

ROOT = Path(__file__).resolve().parents[1]
PLUGINS = {path.name: path for path in sorted(ROOT.glob("plugins/*/src/hicache_*"))}
PACKAGES = {
    "hicache_core": ROOT / "hicache_core",
    **PLUGINS,
    "hicache_conformance": ROOT / "conformance/src/hicache_conformance",
    "hicache_engine": ROOT / "engine/src/hicache_engine",
}
MAY_IMPORT = {
    "hicache_core": set(),
    **{name: {"hicache_core"} for name in PLUGINS},
    # The directories that its plugin POSIX moves bytes in are those of hicache-file (docs/adr/0013).
    "hicache_nixl": {"hicache_core", "hicache_file"},
    "hicache_conformance": {"hicache_core"},
    "hicache_engine": {"hicache_core"},
}
LAZY_DOORS = {
    # The one command that lives in another distribution is imported when it is called.
    ("hicache_core/cli/conformance_command.py", "hicache_conformance"),
}
ENGINES = {"sglang", "vllm", "lmcache"}
ON_NO_INDEX = {"eic", "simm"}
"""Clients that their vendors hand out: nothing can be declared, the plugin's SdkRequirement says how to get them."""
TORCH_HOMES = ("pools/device/torch_", "transfer/staged", "transfer/cuda", "adapters/")


def imports(path: Path) -> list[tuple[str, bool]]:
    """(top-level name, at module level) of every import statement of a file, type-checking blocks left out."""
    tree = ast.parse(path.read_text())
    guarded = {
        id(child)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for child in ast.walk(node)
    }
    top = set(map(id, tree.body))
    found = []
    for node in ast.walk(tree):
        if id(node) in guarded:
            continue
        if isinstance(node, ast.Import):
            found += [(alias.name.partition(".")[0], id(node) in top) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.append((node.module.partition(".")[0], id(node) in top))
    return found


def sources(package: str) -> list[Path]:
    files = sorted(PACKAGES[package].rglob("*.py"))
    assert files, f"no source found under {PACKAGES[package]}"
    return files


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_dependencies_point_one_way(package: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in sources(package)
        for name, _ in imports(path)
        if name in PACKAGES
        and name != package
        and name not in MAY_IMPORT[package]
        and (str(path.relative_to(ROOT)), name) not in LAZY_DOORS
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_what_is_imported_is_declared(package: str) -> None:
    home = next(up for up in PACKAGES[package].parents if (up / "pyproject.toml").exists())
    project = read_document(home / "pyproject.toml")["project"]
    optional = [line for lines in project.get("optional-dependencies", {}).values() for line in lines]
    declared = {re.split(r"[^A-Za-z0-9-]", line)[0] for line in (*project["dependencies"], *optional)}
    imported = {
        {"yaml": "pyyaml"}.get(name, name.replace("_", "-"))
        for path in sources(package)
        for name, _ in imports(path)
        if name not in sys.stdlib_module_names
        and name != package
        and name not in ENGINES  # an adapter is imported by its engine, so it is there
        and name not in ON_NO_INDEX
        and (str(path.relative_to(ROOT)), name) not in LAZY_DOORS
    }
    assert imported <= declared, f"{package} imports {sorted(imported - declared)} without declaring it"
    reasons = (ROOT / "docs/dependencies.md").read_text()
    untold = [name for name in declared if not name.startswith("hicache-") and name not in reasons]
    assert not untold, f"docs/dependencies.md gives no reason for {untold}"


def test_the_core_knows_no_engine() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in sources("hicache_core")
        if "adapters" not in path.parts
        for name, _ in imports(path)
        if name in ENGINES
    ]
    assert not wrong, "\n".join(wrong)


def test_torch_is_imported_at_module_level_only_where_it_is_the_subject() -> None:
    wrong = [
        str(path.relative_to(ROOT))
        for path in sources("hicache_core")
        for name, top in imports(path)
        if name == "torch" and top and not str(path.relative_to(PACKAGES["hicache_core"])).startswith(TORCH_HOMES)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "module",
    ["hicache_core", "hicache_core.cli.app", "hicache_core.hicache", "hicache_file.plugin", "hicache_conformance"],
)
def test_imports_without_torch(module: str) -> None:
    code = f"import sys; import {module}; sys.exit('torch was imported' if 'torch' in sys.modules else 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("entry", ["hicache_file.plugin"])
def test_an_entry_point_module_is_featherweight(entry: str) -> None:
    code = f"import sys; import {entry}; print(*sorted(m for m in sys.modules if m.startswith('hicache')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    heavy = [
        name for name in done.stdout.split() if name.startswith(("hicache_core.storage", "hicache_file.backend"))
    ]
    assert not heavy, f"{entry} imports {heavy} before a session opens"
