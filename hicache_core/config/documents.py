"""JSON, TOML and YAML documents, inline or in a file, as mappings."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from hicache_core.errors import ConfigError
from hicache_core.jsontext import TOO_DEEP

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

yaml: Any = import_module("yaml")
"""By name, since its type stubs are a distribution of their own."""

_TOML_LINE = re.compile(r"^\s*(?:\[[\w.\s\"'-]+\]|[\w.\"'-]+\s*=)", re.MULTILINE)
_FORMATS = {".json": "JSON", ".toml": "TOML", ".yaml": "YAML", ".yml": "YAML"}


def parse_document(text: str, where: str) -> dict[str, Any]:
    """A mapping from inline JSON, TOML or YAML text, or from `@FILE`.

    Raises ConfigError that begins with `where` and says what is wrong and in which line.
    """
    stripped = text.strip()
    if stripped.startswith("@"):
        return read_document(Path(stripped[1:]), where)
    if stripped.startswith("{"):
        try:
            return _parsed("JSON", stripped, where)
        except ConfigError:
            if re.match(r'\{\s*["}]', stripped):  # meant as JSON; an unquoted key makes it YAML's flow form
                raise
    return _parsed("TOML" if _TOML_LINE.search(stripped) else "YAML", stripped, where)


def read_document(path: Path, where: str = "config file") -> dict[str, Any]:
    """A mapping from a file whose suffix says the format. Raises ConfigError."""
    kind = _FORMATS.get(path.suffix.lower())
    if kind is None:
        raise ConfigError(f"{where}: {path} ends in none of {', '.join(_FORMATS)}")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{where}: {path} cannot be read: {error}") from error
    return _parsed(kind, text, f"{where}: {path}")


def _parsed(kind: str, text: str, where: str) -> dict[str, Any]:
    try:
        found = _PARSERS[kind](text)
    except RecursionError:
        raise ConfigError(f"{where}: is no sound {kind}: {TOO_DEEP}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{where}: is no sound {kind}: {_yaml_message(error)}") from None
    except ValueError as error:
        raise ConfigError(f"{where}: is no sound {kind}: {error}") from error
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise ConfigError(f"{where}: must be a mapping of option names to values, got {type(found).__name__}")
    for name in found:
        if not isinstance(name, str):
            raise ConfigError(f"{where}: option names are text, got {name!r}")
    return found


def _yaml_message(error: Any) -> str:
    """What is wrong and where. PyYAML's own text quotes the line, which may hold a secret."""
    mark = getattr(error, "problem_mark", None)
    place = f" (line {mark.line + 1}, column {mark.column + 1})" if mark is not None else ""
    problem = str(getattr(error, "problem", None) or "it cannot be read")
    return problem.partition("'")[0].strip() + place if "tag" not in problem else problem + place


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{name!r} is given twice")
        found[name] = value
    return found


def _load_yaml(text: str) -> Any:
    """Plain values only. YAML takes the last of two equal keys in silence; that would lose an option."""
    pending, seen = [yaml.compose(text, Loader=yaml.SafeLoader)], set()
    while pending:
        node = pending.pop()
        if id(node) in seen:  # an alias, perhaps of a node that holds it
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            pending += node.value
        elif isinstance(node, yaml.MappingNode):
            names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
            twice = next((name for name in names if names.count(name) > 1), None)
            if twice is not None:
                raise ValueError(f"{twice!r} is given twice")
            pending += [value for _, value in node.value]
    return yaml.safe_load(text)


_PARSERS: dict[str, Callable[[str], Any]] = {
    "JSON": lambda text: json.loads(text, object_pairs_hook=_unique),
    "TOML": tomllib.loads,
    "YAML": _load_yaml,
}
