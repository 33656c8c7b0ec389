"""What took part in a run, and in which version: python, core, suite, the plugin, and the SDKs that it needs."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from typing import TYPE_CHECKING

from hicache_core.plugin.discovery import discover
from hicache_core.types import PLUGIN_API, BackendSpec

if TYPE_CHECKING:
    from hicache_conformance.target import Target

ABSENT = "not installed"


def versions(target: Target, spec: BackendSpec | None = None) -> dict[str, str]:
    """Version by name; spec: the backend's, whose SDKs are named too."""
    found = {"python": platform.python_version(), "plugin_api": str(PLUGIN_API)}
    names = ["hicache-core", "hicache-conformance"]
    backend = discover().specs.get(target.name) if isinstance(target.backend, str) else None
    if backend is not None:
        names.append(backend.distribution)
    for name in names:
        found[name] = _version(name)
    for need in spec.requires if spec is not None else ():
        found.update(_sdk(need.module))
    return found


def _sdk(module: str) -> dict[str, str]:
    """Versions of the distributions that bring a module; the module itself where none does (it may be python's)."""
    owners = packages_distributions().get(module.partition(".")[0], ())
    return {owner: _version(owner) for owner in dict.fromkeys(owners)} or {module: _loose(module)}


def _loose(module: str) -> str:
    from hicache_core.plugin.select import module_exists

    return "no distribution" if module_exists(module) else ABSENT


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ABSENT
