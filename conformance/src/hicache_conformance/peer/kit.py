"""What must be known of a class to judge it: how a fresh store is configured, and where its bytes lie."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from hicache_conformance.backdoor import BackDoor

PLACE = "{directory}"
"""Stands for a fresh directory in the values of extra_config and environment."""


class StoredObjects(Protocol):
    """A second client of the store."""

    def rewrite(self, beginning: bytes, change: Callable[[bytes], bytes]) -> None:
        """Change the one object that begins with these bytes. NotApplicable where there is none."""


@dataclass
class PeerKit:
    """A storage class and how a throwaway store of it is made.

    options: of the backend `sglang`, with `{directory}` wherever a fresh directory is meant. The files of the store
    are looked for in that directory. needs: (module, how to get it), without which the class does not import.
    """

    name: str
    sglang_class: str
    options: Mapping[str, Any] = field(default_factory=dict)
    needs: tuple[tuple[str, str], ...] = ()
    keeps_files: bool = True
    main_thread: bool = False
    """Whether it can only be constructed on the main thread, since its constructor sets signal handlers."""
    note: str = ""
    levels_note: str = ""
    """What must be known to read what the levels found."""
    capped: Mapping[str, Any] | None = None
    """More of extra_config, under which the store holds less than 64 KiB; None where it has no such bound."""

    objects: StoredObjects | None = field(default=None, init=False)
    """The way past the class of a store that keeps no files."""

    def options_in(self, directory: Path) -> dict[str, Any]:
        """The options, with the directory's name in place of `{directory}`."""
        return {"sglang_class": self.sglang_class, "clear": True, **_placed(dict(self.options), str(directory))}

    def start(self) -> None:
        """Bring up what the class connects to."""

    def empty(self) -> None:
        """Drop what the server knows of pages, where it outlives the directory of a case of the levels."""

    def stop(self) -> None:
        """Take it down."""

    def back_door(self, backend: object, options: Any) -> BackDoor | None:
        """The way past the class, for the levels of the suite; None where there is none."""
        return None


def _placed(value: Any, directory: str) -> Any:
    if isinstance(value, str):
        return value.replace(PLACE, directory)
    if isinstance(value, Mapping):
        return {name: _placed(item, directory) for name, item in value.items()}
    if isinstance(value, list):
        return [_placed(item, directory) for item in value]
    return value
