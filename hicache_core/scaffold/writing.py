"""Writes the distribution of a new backend. What it writes earns the level core as it is."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from string import Template

from hicache_core.errors import ConfigError
from hicache_core.scaffold.names import check_name, class_of, module_of

_PLACES = {
    "pyproject.toml": "pyproject.toml",
    "README.md": "README.md",
    "src/__init__.py": "src/{module}/__init__.py",
    "src/plugin.py": "src/{module}/plugin.py",
    "src/backend.py": "src/{module}/backend.py",
    "src/backdoor.py": "src/{module}/backdoor.py",
    "tests/test_conformance.py": "tests/test_conformance.py",
}
"""Template below `templates/` (with the ending .tmpl) → file of the distribution."""


def render(name: str) -> dict[str, str]:
    """The files of the distribution: path → text. The name is not checked."""
    words = {"name": name, "module": module_of(name), "class_name": class_of(name)}
    templates = files("hicache_core.scaffold").joinpath("templates")
    return {
        place.format(module=words["module"]): Template(
            templates.joinpath(f"{template}.tmpl").read_text(encoding="utf-8")
        ).substitute(words)
        for template, place in _PLACES.items()
    }


def write_backend(name: str, directory: Path) -> list[Path]:
    """Write the distribution `hicache-{name}` into a directory that is empty or not there yet; the files written.

    Raises ConfigError for a name that cannot be or is taken, and for a directory that holds something or cannot be
    written.
    """
    check_name(name)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        held = sorted(entry.name for entry in directory.iterdir())
        if held:
            more = f" and {len(held) - 1} more" if len(held) > 1 else ""
            raise ConfigError(f"{directory} is not empty (it holds {held[0]!r}{more}): give a new directory")
        return [_write(directory / place, text) for place, text in render(name).items()]
    except OSError as error:
        raise ConfigError(
            f"{directory}: the distribution cannot be written there: {error.strerror or error}"
        ) from error


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("x", encoding="utf-8") as file:
        file.write(text)
    return path
