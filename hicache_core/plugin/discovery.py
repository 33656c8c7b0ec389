"""Finding backends: entry points of the group `hicache.backends`, loaded one by one so that none harms another."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Any

from hicache_core import __version__
from hicache_core.errors import DuplicateNameError, PluginError, UnknownNameError
from hicache_core.plugin.descriptions import describe_options
from hicache_core.plugin.dynamic import DYNAMIC
from hicache_core.plugin.spec import ENTRY_POINT_GROUP
from hicache_core.types import PLUGIN_API, BackendSpec

DISABLE_VARIABLE = "HICACHE_DISABLE_PLUGINS"
HOOK = "hicache_backend"
_OURS = frozenset({"aibrix", "eic", "file", "hf3fs", "mooncake", "nixl", "s3", "simm"})
"""Backends of this project that are distributions of their own: hicache-NAME."""


@dataclass(frozen=True, slots=True)
class FoundBackend:
    """A backend that can be opened, and the distribution that brought it."""

    spec: BackendSpec
    distribution: str
    version: str


@dataclass(frozen=True, slots=True)
class BrokenPlugin:
    """An entry point that cannot be used: its name and value, where it came from, and why."""

    entry: str
    value: str
    distribution: str
    version: str
    error: BaseException

    def __str__(self) -> str:
        cause = f"{type(self.error).__name__}: {self.error}"
        return f"plugin {self.entry!r} ({self.value}, from {self.distribution} {self.version}) is broken: {cause}"


@dataclass(frozen=True, slots=True)
class Discovery:
    """What was found. specs by backend name; duplicates: the distributions that claim one name."""

    specs: dict[str, FoundBackend] = field(default_factory=dict)
    broken: list[BrokenPlugin] = field(default_factory=list)
    disabled: list[str] = field(default_factory=list)
    duplicates: dict[str, list[str]] = field(default_factory=dict)


_cache: dict[frozenset[str], Discovery] = {}


def discover(*, disable: Iterable[str] | str | None = None) -> Discovery:
    """Every backend that is installed. Kept for the process; see `clear_cache`.

    disable: names of backends or of distributions that are not to be loaded, or a comma-separated text of them;
    by default the variable HICACHE_DISABLE_PLUGINS. Never raises for what a plugin does.
    """
    names = _disabled_names(disable)
    if names not in _cache:
        _cache[names] = _discover(names)
    return _cache[names]


def clear_cache() -> None:
    """Look again at the next call: distributions were installed or removed."""
    _cache.clear()


def find_backend(name: str, *, disable: Iterable[str] | str | None = None) -> BackendSpec:
    """The backend of this name.

    Raises UnknownNameError (with the nearest name), DuplicateNameError (two distributions claim it) or PluginError
    (it is installed but broken; the cause is kept).
    """
    found = discover(disable=disable)
    if name in found.specs:
        return found.specs[name].spec
    if name in found.duplicates:
        raise DuplicateNameError(_duplicate(name, found.duplicates[name]))
    for plugin in found.broken:
        if plugin.entry == name:
            raise PluginError(f"{plugin}. `hicache doctor` says more.") from plugin.error
    if name in found.disabled:
        raise PluginError(f"backend {name!r} is disabled by {DISABLE_VARIABLE}")
    hints = [f"It is not installed: pip install hicache-{name}."] if name in _OURS else []
    if found.broken:
        hints.append(f"Broken: {', '.join(p.entry for p in found.broken)} (see `hicache doctor`).")
    raise UnknownNameError("backend", name, found.specs, " ".join(hints))


def _discover(disabled: frozenset[str]) -> Discovery:
    found = Discovery()
    claims: dict[str, list[EntryPoint]] = {}
    for entry in sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda e: (e.name, _distribution(e)[0])):
        if entry.name in disabled or _normal(_distribution(entry)[0]) in disabled:
            found.disabled.append(entry.name)
        else:
            claims.setdefault(entry.name, []).append(entry)
    for name, entries in claims.items():
        owners = ["{} {}".format(*_distribution(entry)) for entry in entries]
        if name == DYNAMIC.name:
            owners.append("hicache-core itself")
        if len(owners) > 1:
            found.duplicates[name] = owners
        else:
            _load_into(found, entries[0])
    if DYNAMIC.name not in found.duplicates and DYNAMIC.name not in disabled:
        found.specs[DYNAMIC.name] = FoundBackend(DYNAMIC, "hicache-core", __version__)
    return found


def _load_into(found: Discovery, entry: EntryPoint) -> None:
    distribution, release = _distribution(entry)
    try:
        spec = _checked(entry.name, _ask(entry.load()))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - a plugin may fail in any way; its error is kept and named
        found.broken.append(BrokenPlugin(entry.name, entry.value, distribution, release, error))
    else:
        found.specs[entry.name] = FoundBackend(spec, distribution, release)


def _ask(target: Any) -> Any:
    """Call the hook of the module (or object) behind an entry point; decorated or not."""
    if isinstance(target, BackendSpec):
        return target
    hook = getattr(target, HOOK, None)
    if hook is None and inspect.isfunction(target) and target.__name__ == HOOK:
        hook = target
    if not callable(hook):
        what = f"module {target.__name__}" if isinstance(target, ModuleType) else repr(target)
        raise PluginError(f"{what} has no function {HOOK}() that returns a BackendSpec")
    return hook()


def _checked(name: str, spec: Any) -> BackendSpec:
    if not isinstance(spec, BackendSpec):
        raise PluginError(f"{HOOK}() must return a BackendSpec, it returned {type(spec).__name__}")
    if spec.plugin_api != PLUGIN_API:
        mend = "upgrade hicache-core" if spec.plugin_api > PLUGIN_API else "upgrade the plugin"
        raise PluginError(
            f"it was built for PLUGIN_API {spec.plugin_api}, this hicache-core has PLUGIN_API {PLUGIN_API}: {mend}"
        )
    if spec.name != name:
        raise PluginError(f"its entry point is called {name!r}, its spec {spec.name!r}: both must be the same")
    try:
        describe_options(spec.options)
    except (TypeError, NameError, AttributeError) as error:
        raise PluginError(f"its options {spec.options!r} are no msgspec.Struct with sound types: {error}") from error
    return spec


def _duplicate(name: str, owners: list[str]) -> str:
    return (
        f"backend {name!r} is claimed by {len(owners)} distributions: {' and '.join(owners)}. Uninstall one, or set "
        f"{DISABLE_VARIABLE} to the name of the distribution that is not to be used."
    )


def _distribution(entry: EntryPoint) -> tuple[str, str]:
    dist = entry.dist
    return (dist.metadata["Name"] or "unknown", dist.version) if dist is not None else ("unknown", "")


def _disabled_names(disable: Iterable[str] | str | None) -> frozenset[str]:
    if disable is None:
        disable = os.environ.get(DISABLE_VARIABLE, "")
    parts = disable.split(",") if isinstance(disable, str) else disable
    return frozenset(form for part in parts if part.strip() for form in (part.strip(), _normal(part.strip())))


def _normal(distribution: str) -> str:
    return distribution.lower().replace("_", "-").replace(".", "-")
