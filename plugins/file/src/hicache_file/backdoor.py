"""The back door for the conformance suite (entry point `hicache.backdoors`): pages as the files they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hicache_file.names import key_of, relative_path
from hicache_file.options import FileOptions


class FileBackDoor:
    """Reads and writes page files past the backend, with nothing but its naming."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def raw_get(self, key: str) -> bytes | None:
        """The file's bytes, or None."""
        try:
            return (self.root / relative_path(key)).read_bytes()
        except FileNotFoundError:
            return None

    def raw_set(self, key: str, data: bytes) -> None:
        """Put exactly these bytes into the key's file, in place."""
        path = self.root / relative_path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def raw_delete(self, key: str) -> bool:
        """Remove the file; whether there was one."""
        path = self.root / relative_path(key)
        there = path.exists()
        path.unlink(missing_ok=True)
        return there

    def raw_list(self) -> list[str]:
        """The keys of all files that are pages."""
        files = (path.relative_to(self.root).parts for path in self.root.glob("*/*/*") if path.is_file())
        keys = (key_of(*parts) for parts in files)
        return [key for key in keys if key is not None]


class FileKit:
    """What the suite needs to know of this backend."""

    def throwaway(self, directory: Path) -> dict[str, Any]:
        """Options of a fresh store in an empty directory."""
        return {"root": str(directory / "store")}

    def back_door(self, backend: object, options: FileOptions) -> FileBackDoor:
        """The way into the store at options.root."""
        return FileBackDoor(Path(options.root))


kit = FileKit()
