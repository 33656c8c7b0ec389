"""The back door for the conformance suite (entry point `hicache.backdoors`): objects as they are."""

from __future__ import annotations

import hashlib
import tempfile
import threading
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

from hicache_core.plugin.dev_servers import DevServer
from hicache_s3.dev_server import dev_server
from hicache_s3.location import LOCAL, client_of, locate, protocol_of
from hicache_s3.names import key_of, name_of
from hicache_s3.options import S3Options


class S3BackDoor:
    """Reads and writes objects past the backend, with nothing but its naming. obstore's synchronous calls."""

    root: Path | None = None

    def __init__(self, options: S3Options) -> None:
        location = locate(options.url)
        settings = {"endpoint": options.endpoint, "region": options.region}
        settings |= {"access_key_id": options.access_key_id, "secret_access_key": options.secret_access_key}
        self._obstore: Any = import_module("obstore")
        stores: Any = import_module("obstore.store")
        self._store: Any = stores.S3Store(
            location.bucket,
            config={name: value for name, value in settings.items() if value is not None},
            client_options={"allow_http": options.allow_http, "timeout": timedelta(seconds=30)},
        )
        self._prefix = location.path("")

    def raw_get(self, key: str) -> bytes | None:
        """The object's bytes, or None."""
        try:
            return bytes(self._obstore.get(self._store, self._path(key)).bytes())
        except FileNotFoundError:
            return None

    def raw_set(self, key: str, data: bytes) -> None:
        """Put exactly these bytes, whatever was there."""
        self._obstore.put(self._store, self._path(key), data, use_multipart=False)

    def raw_delete(self, key: str) -> bool:
        """Remove the object; whether there was one."""
        there = self.raw_get(key) is not None
        self._obstore.delete(self._store, self._path(key))
        return there

    def raw_list(self) -> list[str]:
        """The keys of all objects that are pages."""
        stream = self._obstore.list(self._store, self._prefix.rstrip("/") or None, chunk_size=1000)
        names = (entry["path"][len(self._prefix) :] for chunk in stream for entry in chunk)
        return [key for key in map(key_of, names) if key is not None]

    def _path(self, key: str) -> str:
        return f"{self._prefix}{name_of(key)}"


class FsspecBackDoor:
    """The same over the synchronous calls of fsspec, for URLs that it opens."""

    def __init__(self, options: S3Options) -> None:
        core: Any = import_module("fsspec.core")
        self._fs, root = core.url_to_fs(options.url, use_listings_cache=False, **options.storage_options)
        self._root = str(root).rstrip("/")
        self.root = Path(self._root) if protocol_of(options.url) in LOCAL else None

    def raw_get(self, key: str) -> bytes | None:
        """The file's bytes, or None."""
        try:
            return bytes(self._fs.cat_file(self._path(key)))
        except FileNotFoundError:
            return None

    def raw_set(self, key: str, data: bytes) -> None:
        """Write exactly these bytes."""
        path = self._path(key)
        self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        self._fs.pipe_file(path, data)

    def raw_delete(self, key: str) -> bool:
        """Remove the file; whether there was one."""
        try:
            self._fs.rm_file(self._path(key))
        except FileNotFoundError:
            return False
        return True

    def raw_list(self) -> list[str]:
        """The keys of all files that are pages."""
        names = (path[len(self._root) + 1 :] for path in self._fs.find(self._root))
        return [key for key in map(key_of, names) if key is not None]

    def _path(self, key: str) -> str:
        return f"{self._root}/{name_of(key)}"


class S3Kit:
    """One server for a whole run; each throwaway store is a prefix of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._server: DevServer | None = None
        self._directory: tempfile.TemporaryDirectory[str] | None = None

    def throwaway(self, directory: Path) -> dict[str, Any]:
        """Options of a fresh store; the server is started by the first call. Raises DevServerError."""
        with self._lock:
            if self._server is None:
                self._directory = tempfile.TemporaryDirectory(prefix="hicache-s3-")
                server = dev_server(Path(self._directory.name))
                server.start()
                self._server = server
        name = hashlib.sha256(str(directory).encode()).hexdigest()[:24]
        return {**self._server.options, "url": f"{self._server.options['url']}/{name}"}

    def back_door(self, backend: object, options: S3Options) -> S3BackDoor | FsspecBackDoor:
        """The way into the store at options.url."""
        if client_of(options.url, options.client) == "obstore":
            return S3BackDoor(options)
        return FsspecBackDoor(options)

    def kill_store(self) -> None:
        """SIGKILL to the server."""
        with self._lock:
            if self._server is not None:
                self._server.kill()

    def restart_store(self) -> None:
        """The same ports and directory again; back when it takes an object."""
        with self._lock:
            if self._server is not None:
                self._server.restart()

    def close(self) -> None:
        """Stop the server and remove what it kept."""
        with self._lock:
            if self._server is not None:
                self._server.kill()  # nothing of it is kept: there is nothing to shut down in order
                self._server = None
            if self._directory is not None:
                self._directory.cleanup()
                self._directory = None


kit = S3Kit()
