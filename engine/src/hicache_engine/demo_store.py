"""Where the demo's pages lie: a directory of files, or any other store with a way in past its backend."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from hicache_core.errors import ConfigError
from hicache_core.plugin.dev_servers import dev_server_names, make_dev_server
from hicache_core.plugin.extensions import registered
from hicache_core.plugin.select import BackendChoice, choose_backend, open_backend
from hicache_core.types import OpenContext

BACK_DOORS = "hicache.backdoors"
"""Entry points with a way past a backend: here to damage a page, and to count pages of a process that was killed."""


@dataclass(frozen=True)
class Place:
    """A store as a process of the demo is told to open it."""

    backend: str
    options: Mapping[str, Any]
    tenant: str = ""


class Shelf(Protocol):
    """A store for the pages of process A, and what the cases need to do to it."""

    main: Place

    def damaged(self, key: str) -> tuple[Place, str]:
        """A place with all of A's pages, one bit of this one flipped; and the page's name for people."""

    def fresh(self, name: str) -> Place:
        """A place without pages."""

    def slowly(self, place: Place) -> Place:
        """The same place, written slowly enough for its writer to be killed between two pages."""

    def begun(self, place: Place) -> bool:
        """Whether a process has begun to write there; asked often."""

    def pages(self, place: Place) -> int:
        """Whole pages there."""

    def close(self) -> None:
        """Stop what was started for the demo."""


class FileShelf:
    """Directories below the demo's folder."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self.main = self._place(out / "store")

    def damaged(self, key: str) -> tuple[Place, str]:
        """See Shelf: a copy."""
        root = self._out / "cases" / "corrupt_page"
        shutil.copytree(self._root(self.main), root, dirs_exist_ok=True)
        return self._place(root), flip_byte(root, page_of(key)).name

    def fresh(self, name: str) -> Place:
        """See Shelf."""
        return self._place(self._out / "cases" / name)

    def slowly(self, place: Place) -> Place:
        """See Shelf: files can be counted while their writer is stopped, however fast it is."""
        return place

    def begun(self, place: Place) -> bool:
        """Whether a namespace has its directory; the store's own records are in one that begins with a plus."""
        try:
            with os.scandir(self._root(place)) as entries:
                return any(not entry.name.startswith("+") for entry in entries)
        except FileNotFoundError:
            return False

    def pages(self, place: Place) -> int:
        """See Shelf."""
        return len(page_files(self._root(place)))

    def close(self) -> None:
        """Nothing was started."""

    @staticmethod
    def _place(root: Path) -> Place:
        return Place("file", {"root": str(root.resolve())})

    @staticmethod
    def _root(place: Place) -> Path:
        return Path(place.options["root"])


def page_files(root: Path) -> list[Path]:
    """The pages that a file store holds, whole ones; temporaries have no page's name."""
    return [p for p in root.rglob("*.kv.l*") if p.is_file()]


def page_of(key: str) -> str:
    """A physical key without its namespace."""
    return key.partition("/")[2]


def flip_byte(root: Path, name: str) -> Path:
    """Change one bit in the middle of the stored page of that name; which file it was."""
    (path,) = [p for p in page_files(root) if p.name == name]
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 0x10]))
    return path


@dataclass
class KitShelf:
    """Any store whose plugin offers a back door. Places are tenants: nothing but the demo's own pages is touched.

    options: of a store that is there; without them a throwaway server of the plugin is started, or a throwaway store
    made. Raises ConfigError where the plugin has no back door, and what the opening of the store raises.
    """

    out: Path
    backend: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._open = ExitStack()
        self._known: dict[str, set[str]] = {}
        """Keys that were there before a place was made, by its tenant."""
        try:
            kit = self._kit()
            given = self.options or self._throwaway(kit)
            choice = choose_backend(self.backend, given, strict=not self.options)
            self._door = self._way_in(kit, choice)
        except BaseException:
            self._open.close()
            raise
        self._life = uuid.uuid4().hex[:12]
        self._given = dict(given)
        self.main = self.fresh("main")

    def damaged(self, key: str) -> tuple[Place, str]:
        """See Shelf: in place, since whoever meets it heals it."""
        data = bytearray(self._door.raw_get(key))
        data[len(data) // 2] ^= 0x10
        self._door.raw_set(key, bytes(data))
        return self.main, page_of(key)

    def fresh(self, name: str) -> Place:
        """See Shelf."""
        place = Place(self.backend, self._given, f"demo-{self._life}-{name}")
        self._known[place.tenant] = set(self._door.raw_list())
        return place

    def slowly(self, place: Place) -> Place:
        """See Shelf."""
        options = {"inner": place.backend, "inner_options": dict(place.options)}
        named = {"module": "hicache_engine.demo_trickle", "class_name": "Trickle"}
        return Place("dynamic", named | options, place.tenant)

    def begun(self, place: Place) -> bool:
        """See Shelf."""
        return self.pages(place) > 0

    def pages(self, place: Place) -> int:
        """See Shelf."""
        return len(self._written(place))

    def close(self) -> None:
        """Close the way in, then the store."""
        self._open.close()

    # parts

    def _written(self, place: Place) -> set[str]:
        """Keys of pages that were not there when the place was made; one process of the demo writes at a time."""
        listed = self._door.raw_list()
        # A store that keeps only hashes of keys (`name_of`) lists nothing but pages.
        pages = listed if hasattr(self._door, "name_of") else [key for key in listed if ".kv.l" in key]
        return set(pages) - self._known[place.tenant]

    def _kit(self) -> Any:
        entries = registered(BACK_DOORS).get(self.backend)
        if not entries:
            raise ConfigError(
                f"--backend {self.backend}: the demo damages pages and kills a writer, and needs the plugin's back "
                f"door for it (entry point group {BACK_DOORS}); known: {', '.join(sorted(registered(BACK_DOORS)))}"
            )
        return entries[0].load()

    def _throwaway(self, kit: Any) -> Mapping[str, Any]:
        place = self.out / "store"
        if self.backend in dev_server_names():
            return self._open.enter_context(make_dev_server(self.backend, place.resolve())).options
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
        close: Callable[[], None] | None = getattr(kit, "close", None)
        if close is not None:
            self._open.callback(close)
        made: Mapping[str, Any] = kit.throwaway(place.resolve())
        return made

    def _way_in(self, kit: Any, choice: BackendChoice) -> Any:
        backend: Any = open_backend(choice, OpenContext("0" * 32))
        self._open.callback(backend.close)
        door = kit.back_door(backend, choice.options)
        close = getattr(door, "close", None)
        if close is not None:
            self._open.callback(close)
        return door


def make_shelf(out: Path, backend: str, options: Mapping[str, Any]) -> Shelf:
    """The shelf for a backend. options: of a store that is there, as a command line gives them."""
    if "://" in backend:
        raise ConfigError(f"--backend {backend}: the demo takes a name, and options by -o NAME=VALUE")
    if backend == "file" and not options:
        return FileShelf(out)
    return KitShelf(out, backend, options)
