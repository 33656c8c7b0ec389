"""Any other file system, through fsspec: for breadth, not for speed.

Where one put makes an object visible whole (object stores, memory) it is used. Elsewhere fsspec writes the final path
bit by bit, so a page goes to a temporary and is then moved; on a local file system by a hard link, which also tells
whether the name was taken.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
import uuid
from collections.abc import Callable, Sequence
from datetime import datetime
from importlib import import_module
from typing import Any

from hicache_core.errors import OpenError, OptionError
from hicache_core.plugin.redaction import redact_url
from hicache_s3.client import Data, Entry
from hicache_s3.location import LOCAL, OBJECT_STORES, clean_prefix, protocol_of
from hicache_s3.names import CONTROL
from hicache_s3.options import S3Options

LISTED = 1000
_ABANDONED_SECONDS = 600.0
"""A temporary of this age belongs to no running put."""
_MTIMES = ("mtime", "LastModified", "last_modified", "updated", "created")


class FsspecClient:
    """A root directory of one file system."""

    name = "fsspec"

    def __init__(self, options: S3Options) -> None:
        protocol = protocol_of(options.url)
        self._fs, self.root = _open(options)
        self._local = protocol in LOCAL
        self._whole = protocol in OBJECT_STORES
        self.conditional = self._local
        self._temporaries = self._under(f"{CONTROL}/temporary")
        self._made: set[str] = set()

    def exists(self, path: str) -> bool:
        """`info`, not `exists`: fsspec's own takes every error for an absence."""
        try:
            self._check_place(path)
            self._fs.info(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except IsADirectoryError:
            return True  # something lies there; that it is no page, a read finds out
        return True

    def read(self, path: str, limit: int) -> Data:
        """The start of the file."""
        self._check_place(path)
        return self._fs.cat_file(path, start=0, end=limit)

    def create(self, path: str, data: Data) -> bool:
        """A hard link on a local file system; elsewhere a look and a put."""
        if self.exists(path):
            return False
        try:
            self._publish(path, data, self._link if self._local else self._move)
        except FileExistsError:
            return False
        return True

    def replace(self, path: str, data: Data) -> None:
        """A put, or a temporary and a move over the old one."""
        self._publish(path, data, self._move)

    def remove(self, path: str) -> None:
        """One file."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            self._check_place(path, directory_only=True)
            self._fs.rm_file(path)

    def remove_all(self, paths: Sequence[str]) -> None:
        """One after the other."""
        for path in paths:
            self.remove(path)

    def entries(self, directory: str, after: str | None) -> tuple[list[Entry], bool]:
        """fsspec lists a whole tree at a time; this is a part of it."""
        found = {} if self._leads_out(directory) else self._fs.find(directory, detail=True)
        paths = sorted(path for path in found if after is None or path > after)
        page = [Entry(path, int(found[path]["size"] or 0), _mtime(found[path])) for path in paths[:LISTED]]
        return page, len(paths) > LISTED

    def honours_create(self, path: str, data: bytes) -> bool:
        """Known by the protocol: only a local file system's link is one step. Makes the root, tries to write."""
        self._publish(path, data, self._move)
        if not self._whole:
            for entry in self.entries(self._temporaries, None)[0]:
                if 0 < entry.mtime < time.time() - _ABANDONED_SECONDS:
                    self.remove(entry.path)
        return self._local

    def close(self) -> None:
        """Nothing is held."""

    def _check_place(self, path: str, *, directory_only: bool = False) -> None:
        """Local: what is no plain file in a directory of ours is no page.

        Raises NotADirectoryError for a directory that leads elsewhere, IsADirectoryError for a link, a pipe or a
        directory in a page's place.
        """
        if not self._local:
            return
        parent = path.rpartition("/")[0]
        if self._leads_out(parent):
            raise NotADirectoryError(errno.ENOTDIR, "a link in place of a directory of the store", parent)
        if not directory_only and not stat.S_ISREG(os.lstat(path).st_mode):
            raise IsADirectoryError(errno.EISDIR, "no plain file in the place of a page", path)

    def _leads_out(self, directory: str) -> bool:
        """Whether a directory of the store was replaced by a link; the root itself may be one."""
        return self._local and directory != self.root and os.path.islink(directory)

    def _under(self, name: str) -> str:
        return f"{self.root}/{name}" if self.root else name

    def _publish(self, path: str, data: Data, place: Callable[[str, str], None]) -> None:
        if self._whole:
            self._fs.pipe_file(path, data)
            return
        temporary = f"{self._temporaries}/{uuid.uuid4().hex}"
        try:
            try:
                self._write(temporary, data)
                place(temporary, path)
            except FileNotFoundError:  # somebody removed a directory that we had made
                self._made.clear()
                self._write(temporary, data)
                place(temporary, path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                self._fs.rm_file(temporary)

    def _write(self, temporary: str, data: Data) -> None:
        self._directory(temporary)
        with self._fs.open(temporary, "wb") as file:
            file.write(data)

    def _move(self, temporary: str, path: str) -> None:
        self._directory(path)
        if self._local:
            self._check_place(path, directory_only=True)
            os.replace(temporary, path)
        else:
            self._fs.mv(temporary, path)

    def _link(self, temporary: str, path: str) -> None:
        self._directory(path)
        self._check_place(path, directory_only=True)
        os.link(temporary, path, follow_symlinks=False)

    def _directory(self, path: str) -> None:
        parent = path.rpartition("/")[0]
        if parent and parent not in self._made:
            if self._local:
                os.makedirs(self.root, 0o700, exist_ok=True)  # the mode is the last directory's only
                os.makedirs(parent, 0o700, exist_ok=True)
            else:
                self._fs.makedirs(parent, exist_ok=True)
            self._made.add(parent)


def _mtime(info: dict[str, Any]) -> float:
    """Seconds since the epoch; 0 where the file system does not tell."""
    value = next((info[name] for name in _MTIMES if info.get(name) is not None), 0.0)
    if isinstance(value, str):
        value = datetime.fromisoformat(value.replace("Z", "+00:00"))
    return value.timestamp() if isinstance(value, datetime) else float(value)


def _open(options: S3Options) -> tuple[Any, str]:
    fsspec: Any = import_module("fsspec")
    import_module("fsspec.core")

    shown = redact_url(options.url)
    if "://" not in options.url:
        raise OptionError(f"url {options.url!r} is no URL; write s3://BUCKET/PREFIX or file:///DIRECTORY")
    protocol = protocol_of(options.url)
    if protocol not in fsspec.available_protocols():
        known = ", ".join(sorted(fsspec.available_protocols()))
        raise OptionError(f"url {shown}: fsspec knows no protocol {protocol!r}; it knows {known}")
    settings = {"use_listings_cache": False, "skip_instance_cache": True, **options.storage_options}
    try:
        fs, root = fsspec.core.url_to_fs(options.url, **settings)
    except ImportError as error:
        raise OpenError(f"url {shown}: {error}") from error  # fsspec names the package to install
    root = str(root).rstrip("/")
    clean_prefix(root, options.url)
    if protocol in LOCAL and not root:
        raise OptionError(f"url {shown} is the root of the file system; name a directory of the store's own")
    return fs, root
