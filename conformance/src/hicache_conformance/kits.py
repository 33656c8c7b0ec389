"""Kits of the backends that come with hicache-core; other distributions register theirs in `hicache.backdoors`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from hicache_conformance.backdoor import StoreKit
from hicache_core.storage.memory import MemoryBackend


class MemoryBackDoor:
    """The dict behind an opened `memory` backend."""

    root: Path | None = None

    def __init__(self, backend: MemoryBackend) -> None:
        self._store = backend.store

    def raw_get(self, key: str) -> bytes | None:
        """The stored object, or None."""
        found = self._store.pages.get(key)
        return None if found is None else found[0]

    def raw_set(self, key: str, data: bytes) -> None:
        """Store exactly these bytes."""
        with self._store.lock:
            self._store.pages[key] = (data, time.time())

    def raw_delete(self, key: str) -> bool:
        """Remove the object; whether there was one."""
        with self._store.lock:
            return self._store.pages.pop(key, None) is not None

    def raw_list(self) -> list[str]:
        """The keys of every stored object."""
        return list(self._store.pages)


class MemoryKit:
    """`memory` needs no options: each opened backend has a store of its own."""

    def throwaway(self, directory: Path) -> dict[str, Any]:
        """No options."""
        return {}

    def back_door(self, backend: object, options: Any) -> MemoryBackDoor:
        """The way into this backend's dict."""
        if not isinstance(backend, MemoryBackend):
            raise TypeError(f"the back door of `memory` needs its backend object, got {type(backend).__name__}")
        return MemoryBackDoor(backend)


BUILT_IN: dict[str, StoreKit] = {"memory": MemoryKit()}
