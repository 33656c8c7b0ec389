"""Ways past classes that keep one file for a page, for the levels of the suite."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hicache_core.adapters.sglang_backend.backend import SglangBackend

_STEM = re.compile(r"(.+)_([0-9a-f]{32})_0_1")


class FilePerPage:
    """Files of SGLang's `HiCacheFile`: the class itself says how a key is spelt in a file's name."""

    def __init__(self, backend: SglangBackend, root: Path) -> None:
        self._backend = backend
        self.root: Path | None = root
        self._root = root

    def _path(self, key: str) -> Path:
        namespace, rest = self._backend.split(key)
        peer: Any = self._backend.store(namespace, None).peer
        return self._root / f"{peer._get_suffixed_key(rest)}.bin"

    def raw_get(self, key: str) -> bytes | None:
        """The file's bytes, or None."""
        try:
            return self._path(key).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def raw_set(self, key: str, data: bytes) -> None:
        """Put exactly these bytes into the file."""
        self._path(key).write_bytes(data)

    def raw_delete(self, key: str) -> bool:
        """Remove the file; whether there was one."""
        path = self._path(key)
        there = path.exists()
        path.unlink(missing_ok=True)
        return there

    def raw_list(self) -> list[str]:
        """The keys of all files that are pages of a namespace."""
        found = (_STEM.fullmatch(path.name.removesuffix(".bin")) for path in self._root.glob("*.bin"))
        return [f"{match[2]}/{match[1]}" for match in found if match is not None]
