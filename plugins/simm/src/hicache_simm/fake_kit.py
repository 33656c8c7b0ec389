"""The conformance suite's throwaway store: on a FAKE of the client's module, and marked so in every report."""

from __future__ import annotations

import sys
import types
from collections.abc import Mapping
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from hicache_simm import fake
from hicache_simm.options import SimmOptions


class SimmBackDoor:
    """The rows of the fake."""

    root = None

    def __init__(self, objects: fake.Objects) -> None:
        self._objects = objects

    def raw_get(self, key: str) -> bytes | None:
        """The object, or None."""
        return self._objects.get(key)

    def raw_set(self, key: str, data: bytes) -> None:
        """Store exactly these bytes as the object."""
        self._objects.put(key, data)

    def raw_delete(self, key: str) -> bool:
        """Remove the object; whether there was one."""
        return self._objects.remove(key)

    def raw_list(self) -> list[str]:
        """The keys of every object."""
        return self._objects.keys()


class FakeSimmKit:
    """What the suite needs to know of this backend."""

    fake = "SiMM's transport needs an RDMA card and a closed package: a fake of the client's API on a file"

    def enter_process(self, options: Mapping[str, Any]) -> None:
        """Put the fake in the place of the client's module, unless that is there."""
        if "simm.kv" in sys.modules:
            return
        package = types.ModuleType("simm")
        package.__path__ = []
        package.__spec__ = ModuleSpec("simm", None, is_package=True)
        package.kv = fake  # type: ignore[attr-defined]
        sys.modules |= {"simm": package, "simm.kv": fake}

    def throwaway(self, directory: Path) -> dict[str, Any]:
        """Options of a fresh store in an empty directory."""
        self.enter_process({})
        place = directory.resolve() / "simm"
        place.mkdir(parents=True, exist_ok=True)
        return {"manager_address": f"{place}:0", "bounce_size": 32 << 20}

    def back_door(self, backend: object, options: SimmOptions) -> SimmBackDoor:
        """The way into the store of these options."""
        return SimmBackDoor(fake.Objects(Path(options.manager_address.rpartition(":")[0]) / "simm.db"))


kit = FakeSimmKit()
