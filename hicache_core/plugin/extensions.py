"""Named parts other than backends: eviction policies, transforms, observers, each an entry point of its group."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from hicache_core.errors import ConfigError, DuplicateNameError, PluginError, UnknownNameError


@functools.cache
def registered(group: str) -> Mapping[str, Sequence[EntryPoint]]:
    """Entry points of a group by name; a name with more than one is claimed twice. Kept for the process."""
    found: dict[str, list[EntryPoint]] = {}
    for entry in entry_points(group=group):
        same = found.setdefault(entry.name, [])
        if all(entry.value != other.value for other in same):
            same.append(entry)
    return found


def make(group: str, kind: str, name: str, options: Mapping[str, Any] | None = None) -> Any:
    """The part of that name, made by calling what its entry point names with the options as keywords.

    kind: what messages call it. Raises UnknownNameError (names the nearest), DuplicateNameError where two
    distributions claim the name, PluginError where it cannot be imported or made.
    """
    entries = registered(group).get(name)
    if not entries:
        raise UnknownNameError(kind, name, registered(group))
    if len(entries) > 1:
        claims = " and ".join(f"{e.value} ({e.dist.name if e.dist else 'unknown'})" for e in entries)
        raise DuplicateNameError(f"{kind} {name!r} is claimed by {claims}; uninstall one of them")
    entry = entries[0]
    try:
        return entry.load()(**(options or {}))
    except ConfigError:
        raise
    except Exception as error:
        raise PluginError(f"{kind} {name!r} ({entry.value}) could not be loaded: {error}") from error


def resolve(group: str, kind: str, given: Sequence[Any]) -> list[Any]:
    """Parts as a configuration names them: a name, `{"name": …, "options": {…}}`, or the object itself."""
    return [_one(group, kind, item) for item in given]


def _one(group: str, kind: str, item: Any) -> Any:
    if isinstance(item, str):
        return make(group, kind, item)
    if isinstance(item, Mapping):
        unknown = sorted(set(item) - {"name", "options"})
        if unknown or not isinstance(item.get("name"), str):
            said = f"unknown key {unknown[0]!r}" if unknown else "no name"
            raise ConfigError(f'{kind}: {said} in {dict(item)!r}; give a name, or {{"name": …, "options": {{…}}}}')
        return make(group, kind, item["name"], item.get("options"))
    return item
