"""Who uses an open store. A RocksDB can be opened once in a process, so its users there share it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hicache_aibrix.options import AibrixOptions
from hicache_aibrix.store import Store
from hicache_core.errors import OpenError


@dataclass(frozen=True, slots=True)
class Share:
    """A store, and how to say that it is no longer needed."""

    store: Store
    give_back: Callable[[], None]


@dataclass(slots=True)
class _Shared:
    store: Store
    options: AibrixOptions
    users: int = 0


_lock = threading.Lock()
_open: dict[tuple[int, str], _Shared] = {}
"""By process and real path. What a fork copies stays here, under the parent's id: the child neither uses nor closes
the parent's database."""


def share(root: Path, options: AibrixOptions, make: Callable[[], Store]) -> Share:
    """The process's one store on `root`, made if there is none. Raises OpenError where it has other options."""
    at = (os.getpid(), str(root))
    with _lock:  # held while a store opens and closes, or the next opener would find its lock taken
        shared = _open.get(at)
        if shared is None:
            shared = _open[at] = _Shared(make(), options)
        elif shared.options != options:
            raise OpenError(
                f"this process has the RocksDB at {root} open with other options; a process opens it once, so give "
                "every session the same options, or another root"
            )
        shared.users += 1
    return Share(shared.store, lambda: _give_back(at))


def _give_back(at: tuple[int, str]) -> None:
    with _lock:
        shared = _open[at]
        shared.users -= 1
        if shared.users == 0:
            del _open[at]
            shared.store.close()
