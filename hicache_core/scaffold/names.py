"""The name of a new backend: what it may be, and whether it is still free."""

from __future__ import annotations

import importlib.util
import re

from hicache_core.errors import ConfigError
from hicache_core.plugin.discovery import discover

NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
LONGEST = 40
OURS = (
    "aibrix", "conformance", "core", "eic", "engine", "file", "hf3fs", "mooncake", "nixl", "s3", "simm",
)  # fmt: skip
"""Names that distributions of this project have, whether they are installed or not."""


def module_of(name: str) -> str:
    """The package of a backend: `my-store` → `hicache_my_store`."""
    return f"hicache_{name.replace('-', '_')}"


def class_of(name: str) -> str:
    """How its classes are called: `my-store` → `MyStore`."""
    return "".join(part.capitalize() for part in name.split("-"))


def check_name(name: str) -> str:
    """The name, if a new backend can have it. Raises ConfigError that says what is wrong and what would do."""
    if not NAME.fullmatch(name) or len(name) > LONGEST:
        near = suggestion(name)
        raise ConfigError(
            f"{name!r} cannot be a backend's name: it is the scheme of a URL and part of a package's name, so it has "
            f"at most {LONGEST} small letters, digits and single hyphens, and starts with a letter"
            + (f"; try {near!r}" if near else "")
        )
    if name.startswith("hicache-"):
        raise ConfigError(f"give the name of the backend alone, {name[8:]!r}: the distribution becomes {name!r}")
    if name in OURS:
        raise ConfigError(f"{name!r} is taken: hicache-{name} is a distribution of this project; choose another name")
    owner = _owner(name)
    if owner:
        raise ConfigError(f"{name!r} is taken: {owner}; choose another name, or uninstall it")
    return name


def suggestion(name: str) -> str:
    """The nearest name that would do; empty where there is none."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower()
    tidy = re.sub(r"[^a-z0-9]+", "-", words).lstrip("-0123456789").strip("-")
    return tidy[:LONGEST].rstrip("-")


def _owner(name: str) -> str:
    """Who has the name here; empty: no one."""
    found = discover()
    if name in found.specs:
        one = found.specs[name]
        return f"{one.distribution} {one.version} brings a backend of this name"
    if name in found.duplicates:
        return f"{' and '.join(found.duplicates[name])} claim it already"
    for plugin in found.broken:
        if plugin.entry == name:
            return f"{plugin.distribution} claims it (and is broken: `hicache doctor`)"
    if name in found.disabled:
        return "a backend of this name is installed and disabled"
    if importlib.util.find_spec(module_of(name)) is not None:
        return f"a package {module_of(name)} can be imported already"
    return ""
