"""The conformance suite's throwaway store: on a FAKE of the vendor's module, and marked so in every report."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hicache_eic import fake
from hicache_eic.backend import HEADER, MAGIC
from hicache_eic.options import HEADER_BYTES, EicOptions

INSTANCE = "throwaway"


class EicBackDoor:
    """The rows of the fake, their headers left out."""

    root = None

    def __init__(self, store: fake.Store, ns: str) -> None:
        self._store, self._ns = store, ns

    def raw_get(self, key: str) -> bytes | None:
        """The object, or None."""
        data = self._store.get(self._ns, key)
        return None if data is None else data[HEADER_BYTES:]

    def raw_set(self, key: str, data: bytes) -> None:
        """Store exactly these bytes as the object."""
        self._store.put(self._ns, key, HEADER.pack(MAGIC, len(data)) + data)

    def raw_delete(self, key: str) -> bool:
        """Remove the object; whether there was one."""
        return self._store.remove(self._ns, key)

    def raw_list(self) -> list[str]:
        """The keys of every object."""
        return self._store.keys(self._ns)


class FakeEicKit:
    """What the suite needs to know of this backend."""

    fake = "the vendor's client and server are not public: a fake of the client's API on files stands in for both"

    def enter_process(self, options: Mapping[str, Any]) -> None:
        """Put the fake in the place of the vendor's module, unless that is there."""
        sys.modules.setdefault("eic", fake)

    def throwaway(self, directory: Path) -> dict[str, Any]:
        """Options of a fresh store in an empty directory."""
        self.enter_process({})
        place = directory / "eic"
        place.mkdir(parents=True, exist_ok=True)
        return {"endpoint": str(place), "instance_id": INSTANCE, "bounce_size": 32 << 20}

    def back_door(self, backend: object, options: EicOptions) -> EicBackDoor:
        """The way into the store of these options."""
        store = fake.Store(Path(options.endpoint) / f"{options.instance_id}.db")
        return EicBackDoor(store, options.namespace)


kit = FakeEicKit()
