"""The back door: a second way into a store, past the backend, so that a backend cannot hide its own mistakes.

An author offers one through the entry-point group `hicache.backdoors` (name of the backend → a `StoreKit` object), or
hands a function to `Target(back_door=…)`. Cases that need one are skipped without it, and the level is then partial.
"""

from __future__ import annotations

import atexit
import logging
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from hicache_core.errors import DuplicateNameError

GROUP = "hicache.backdoors"

_log = logging.getLogger(__name__)


@runtime_checkable
class BackDoor(Protocol):
    """Raw access to what is stored. Keys are physical keys; bytes are whole objects, the seal first.

    An optional attribute `page_files = False` says that pages are parts of larger files: cases that plant something
    in the place of a page's file then do not apply. `empty_objects = False`: the store holds no object without bytes,
    so a page cut to nothing is cut to one byte instead. `name_of(key) -> str`: the store keeps no keys but only, say,
    their hashes; raw_list then lists those names.
    """

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
    """What an entry of `hicache.backdoors` names: how to make a throwaway store, and the way in.

    Optional attributes, looked for by name, so that a kit without them is a kit:

    * `fake: str`: why the throwaway store is not the real one, in words; absent or empty: it is. Reports say it.
    * `close() -> None`: called once when a run ends; a kit that keeps a server running for its throwaway stores stops
      it here. Another `throwaway` may follow, and starts it again.
    * `kill_store() -> None` and `restart_store() -> None`, both or neither: kill -9 the server of the throwaway
      stores; start it again on the same addresses and data, and return when it answers. For the cases in which a
      store dies; a store that lives in this process or in plain files has neither.
    * `enter_process(options: Mapping[str, Any]) -> None`: called in every other process before it opens the store
      with these options; a kit whose client is a fake puts it in place here.
    * `before_fork(options: Mapping[str, Any]) -> None`: called once in the process from which those are forked; a kit
      whose SDK takes seconds to import does so here. It must start no thread.
    """

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


@dataclass(frozen=True, slots=True)
class Outage:
    """The server of a throwaway store, which can die and come back."""

    kill: Callable[[], None]
    restart: Callable[[], None]


def outage_of(kit: StoreKit | None) -> Outage | None:
    """How to kill and restart the kit's server; None where the kit names none."""
    kill, restart = getattr(kit, "kill_store", None), getattr(kit, "restart_store", None)
    return None if kill is None or restart is None else Outage(kill, restart)


_in_use: dict[int, StoreKit] = {}
"""Kits that have made a throwaway store since the last `close_kits`, by identity."""


def throwaway_options(kit: StoreKit, directory: Path) -> dict[str, Any]:
    """Options of a fresh store of this kit, which is closed when the run ends (at the latest with the process)."""
    if not _in_use:
        atexit.register(close_kits)
    _in_use[id(kit)] = kit
    return kit.throwaway(directory)


def close_kits() -> None:
    """Close every kit in use. What a close raises is logged: the run has been judged by then."""
    atexit.unregister(close_kits)
    while _in_use:
        _, kit = _in_use.popitem()
        close = getattr(kit, "close", None)
        if close is None:
            continue
        try:
            close()
        except Exception:  # noqa: BLE001 - a kit may raise anything; the log keeps the cause
            _log.exception("%s.close() failed: a throwaway store may still be running", type(kit).__name__)


def fake_reason(kit: StoreKit | None) -> str:
    """Why the kit's throwaway store is not the real one; empty where it is, or where there is no kit."""
    return str(getattr(kit, "fake", "") or "")


def _entries(name: str) -> list[EntryPoint]:
    return list(entry_points(group=GROUP, name=name))
