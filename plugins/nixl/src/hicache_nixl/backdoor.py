"""The back door for the conformance suite: files as hicache-file's are, objects by another S3 client (obstore)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hicache_file.backdoor import FileBackDoor

from hicache_core.errors import MissingDependencyError
from hicache_nixl.objects import HEADER, MAGIC, parameters
from hicache_nixl.options import HEADER_BYTES, NixlOptions


class ObjectBackDoor:
    """The bucket's objects below the prefix, their headers left out."""

    root = None

    def __init__(self, store: Any, prefix: str) -> None:
        self._store, self._prefix = store, prefix

    def raw_get(self, key: str) -> bytes | None:
        """The object, or None."""
        try:
            return bytes(self._store.get(self._prefix + key).bytes())[HEADER_BYTES:]
        except FileNotFoundError:
            return None

    def raw_set(self, key: str, data: bytes) -> None:
        """Store exactly these bytes as the object."""
        self._store.put(self._prefix + key, HEADER.pack(MAGIC, len(data)) + data)

    def raw_delete(self, key: str) -> bool:
        """Remove the object; whether there was one."""
        there = self.raw_get(key) is not None
        self._store.delete(self._prefix + key)
        return there

    def raw_list(self) -> list[str]:
        """The keys of every object."""
        names = [entry["path"] for page in self._store.list() for entry in page]
        ours = [name.removeprefix(self._prefix) for name in names if name.startswith(self._prefix)]
        return [key for key in ours if not key.startswith("+")]


class NixlKit:
    """What the suite needs to know of this backend."""

    def throwaway(self, directory: Path) -> dict[str, Any]:
        """Options of a fresh store in an empty directory: plugin POSIX."""
        return {"root": str(directory / "store"), "bounce_size": 8 << 20, "agents": 2}

    def back_door(self, backend: object, options: NixlOptions) -> FileBackDoor | ObjectBackDoor:
        """The way into the store of these options."""
        if options.plugin == "POSIX":
            return FileBackDoor(Path(options.root or ""))
        try:
            from obstore.store import S3Store
        except ImportError as error:
            raise MissingDependencyError("the back door of plugin OBJ needs obstore: pip install obstore") from error
        told = parameters(options)
        config: Any = {"region": options.region}
        config |= {"access_key_id": told["access_key"], "secret_access_key": told["secret_key"]}
        if options.endpoint is not None:
            config["endpoint"] = options.endpoint
        client: Any = {"allow_http": (options.endpoint or "").startswith("http://")}
        return ObjectBackDoor(S3Store(options.bucket, config=config, client_options=client), options.prefix)


kit = NixlKit()
