"""The back door: a second way into a store, past the backend, so that a backend cannot hide its own mistakes.

An author offers one through the entry-point group `hicache.backdoors` (name of the backend → a `StoreKit` object), or
hands a function to `Target(back_door=…)`. Cases that need one are skipped without it, and the level is then partial.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from hicache_core.errors import DuplicateNameError

GROUP = "hicache.backdoors"


@runtime_checkable
class BackDoor(Protocol):
    """Raw access to what is stored. Keys are physical keys; bytes are whole objects, the seal first."""

    root: Path | None
    """The directory that holds the store; None where it keeps no files (cases about files then do not apply)."""

    def raw_get(self, key: str) -> bytes | None:
        """The stored object, or None."""

    def raw_set(self, key: str, data: bytes) -> None:
        """Store exactly these bytes under the key, whatever was there."""

    def raw_delete(self, key: str) -> bool:
        """Remove the object; whether there was one."""

    def raw_list(self) -> list[str]:
        """The keys of every stored object."""


class StoreKit(Protocol):
    """What an entry of `hicache.backdoors` names: how to make a throwaway store, and the way in."""

    def throwaway(self, directory: Path) -> dict[str, Any]:
        """Options of a fresh store in this empty directory; {} where none are needed."""

    def back_door(self, backend: object, options: Any) -> BackDoor:
        """The way into the store of an opened backend object; options is its options struct."""


def find_kit(name: str) -> StoreKit | None:
    """The kit registered for a backend, or a built-in one, or None. DuplicateNameError where two claim the name."""
    found = _entries(name)
    if len(found) > 1:
        owners = ", ".join(sorted(f"{e.value} ({e.dist.name if e.dist else 'unknown distribution'})" for e in found))
        raise DuplicateNameError(f"several back doors are registered for backend {name!r}: {owners}")
    if found:
        kit: StoreKit = found[0].load()
        return kit
    from hicache_conformance.kits import BUILT_IN

    return BUILT_IN.get(name)


def _entries(name: str) -> list[EntryPoint]:
    return list(entry_points(group=GROUP, name=name))
