"""S3, GCS and Azure through obstore (Rust's object_store)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

from hicache_core.errors import OpenError, OptionError
from hicache_s3.client import Data, Entry
from hicache_s3.credentials import aws_settings
from hicache_s3.failures import is_taken, is_whole_for_range, short
from hicache_s3.location import S3, Location
from hicache_s3.options import S3Options

LISTED = 1000
"""Objects in one page of a listing, as S3 gives them."""
_NOT_THERE = ("NotImplemented", "501 Not Implemented", "not supported", "NotSupported", "not yet implemented")

_used_by: int | None = None
"""The process whose obstore has running threads."""


class ObstoreClient:
    """One bucket. Reads come as obstore's own buffer, from which the page is copied: one copy."""

    name = "obstore"

    def __init__(self, location: Location, options: S3Options) -> None:
        _claim_process()
        self._obstore: Any = import_module("obstore")
        self._store: Any = _open(location, options)
        self._threshold, self._chunk = options.multipart_threshold, options.multipart_chunk
        self.conditional = False
        self._ranges = True

    def exists(self, path: str) -> bool:
        """One HEAD."""
        try:
            self._obstore.head(self._store, path)
        except FileNotFoundError:
            return False
        return True

    def read(self, path: str, limit: int) -> Data:
        """One GET, of a range: a wrong object, however large, costs one byte more than the right one."""
        if self._ranges:
            try:
                return self._obstore.get_range(self._store, path, start=0, end=limit)
            except Exception as error:
                if not is_whole_for_range(error):
                    raise
                self._ranges = False  # this server sends all of an object when a range covers it
        return self._obstore.get(self._store, path).bytes()

    def create(self, path: str, data: Data) -> bool:
        """One conditional PUT; on a server that does not honour it, and for pages in parts, a HEAD and a PUT."""
        if not self.conditional or len(data) > self._threshold:
            if self.exists(path):
                return False
            self.replace(path, data)
            return True
        try:
            self._obstore.put(self._store, path, data, mode="create", use_multipart=False)
        except Exception as error:
            if is_taken(error):
                return False
            raise
        return True

    def replace(self, path: str, data: Data) -> None:
        """One PUT, or a multipart upload above the threshold; S3 shows the object when it is complete."""
        parts = len(data) > self._threshold
        self._obstore.put(self._store, path, data, use_multipart=parts, chunk_size=self._chunk)

    def remove(self, path: str) -> None:
        """One DELETE."""
        try:
            self._obstore.delete(self._store, path)
        except FileNotFoundError:
            pass  # GCS and Azure say so, S3 does not

    def remove_all(self, paths: Sequence[str]) -> None:
        """Bulk DELETE, 1,000 a request."""
        if paths:
            self._obstore.delete(self._store, list(paths))

    def entries(self, directory: str, after: str | None) -> tuple[list[Entry], bool]:
        """One page of a listing, from `after` on."""
        stream = self._obstore.list(self._store, directory or None, offset=after, chunk_size=LISTED)
        found: list[Entry] = []
        for chunk in stream:
            known = (m for m in chunk if after is None or m["path"] > after)  # a server may not know start-after
            found += [Entry(m["path"], m["size"], m["last_modified"].timestamp()) for m in known]
            if len(found) >= LISTED:
                return found, True
        return found, False

    def honours_create(self, path: str, data: bytes) -> bool:
        """The object stays, so that from the second open on one request answers."""
        for _ in range(2):
            try:
                self._obstore.put(self._store, path, data, mode="create", use_multipart=False)
            except Exception as error:  # every kind but two goes on
                if is_taken(error):
                    return True
                if any(word in short(error) for word in _NOT_THERE):
                    self.replace(path, data)
                    return False
                raise
        return False

    def close(self) -> None:
        """Connections close when the store is let go."""
        self._store = None


def _claim_process() -> None:
    """obstore's threads do not survive a fork, and a call in the child would wait for them for ever."""
    global _used_by
    if _used_by is not None and _used_by != os.getpid():
        raise OpenError(
            f"obstore was already in use in process {_used_by} when this one was forked from it, and cannot work "
            "here; start processes with the method 'spawn', or open the store after the fork only"
        )
    _used_by = os.getpid()


def _open(location: Location, options: S3Options) -> Any:
    stores: Any = import_module("obstore.store")
    common: dict[str, Any] = {
        "client_options": _client_options(options),
        "retry_config": {
            "max_retries": options.retries,
            "retry_timeout": timedelta(seconds=options.timeout),
            "backoff": {"init_backoff": timedelta(milliseconds=50), "max_backoff": timedelta(seconds=1), "base": 2},
        },
    }
    further = dict(options.storage_options)
    try:
        if location.protocol in S3:
            settings = aws_settings(options)
            provider = settings.pop("credential_provider", None)
            if provider is not None:
                common["credential_provider"] = provider
            return stores.S3Store(location.bucket, config={**settings, **further}, **common)
        if location.protocol == "gs":
            return stores.GCSStore(location.bucket, config=further, **common)
        if "@" in location.bucket:  # abfss://CONTAINER@ACCOUNT.dfs.core.windows.net
            return stores.AzureStore.from_url(location.base, config=further, **common)
        return stores.AzureStore(location.bucket, config=further, **common)
    except OptionError:
        raise
    except Exception as error:
        raise OptionError(
            f"obstore does not take these settings for {location.base}: {short(error)}; see options endpoint, "
            "region and storage_options"
        ) from error


def _client_options(options: S3Options) -> dict[str, Any]:
    found: dict[str, Any] = {
        "allow_http": options.allow_http,
        "connect_timeout": timedelta(seconds=options.connect_timeout),
        "timeout": timedelta(seconds=options.timeout),
        "user_agent": "hicache-s3",
    }
    if options.insecure_tls:
        found["allow_invalid_certificates"] = True
    if options.ca_file is not None:
        try:
            found["root_certificate"] = Path(options.ca_file).expanduser().read_bytes()
        except OSError as error:
            raise OptionError(f"option ca_file={options.ca_file!r} cannot be read: {error.strerror}") from error
    return found
