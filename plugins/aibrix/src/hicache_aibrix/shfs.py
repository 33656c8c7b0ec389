"""AIBrix's SHFS connector, with publication that two processes cannot tear. Imported after AIBrix.

Its own put writes `<key>.tmp` and renames it: two writers of one key share that file, and one may publish what the
other has just truncated. Here its put writes into the writer's own directory and one hard link publishes the file,
which fails where another was first; a replace is one rename. Files lie where AIBrix's own connector puts them.
"""

from __future__ import annotations

import itertools
import os
import stat
import threading
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from aibrix_kvcache import Status
from aibrix_kvcache.l2.connectors.shfs import SHFSConnector

from hicache_aibrix.region import PageRegion
from hicache_aibrix.store import ALREADY_THERE
from hicache_aibrix.writers import WriterPlace
from hicache_core.errors import OpenError

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


class PublishingSHFS(SHFSConnector):  # type: ignore[misc]  # AIBrix has no types
    """A connector of AIBrix for one root."""

    def __init__(self, root: Path, executor: Executor) -> None:
        super().__init__(str(root), executor)
        self._place = WriterPlace(root)
        self._staging = SHFSConnector(str(self._place.path), executor)
        self._numbers, self._thread = itertools.count(), threading.local()
        self._root_fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)

    def path_of(self, key: bytes) -> Path:
        """Where AIBrix keeps the object of this key."""
        path: Path = self._key_to_filepath(key)
        return path

    def check(self) -> None:
        """Raise OpenError where a file cannot be written and linked as publication needs it."""
        first, second = self._place.path / "check", self._place.path / "check.link"
        try:
            first.write_bytes(b"")
            os.link(first, second)
            second.unlink()
            first.unlink()
        except OSError as error:
            raise OpenError(
                f"root {self.root_path} cannot hold a store: {error}; it must be writable, with room, on a file "
                "system with hard links"
            ) from error

    def close(self) -> Any:
        """Let go of the writer's directory too."""
        if getattr(self, "_root_fd", -1) >= 0:  # AIBrix calls close from __del__, also of what was half made
            os.close(self._root_fd)
            self._root_fd = -1
            self._place.close()
        return super().close()

    def leave_to_parent(self) -> None:
        """See Connector. Else the child, when it is done, would remove the directory in which the parent writes."""
        if self._root_fd >= 0:  # it may have been closed before the fork
            os.close(self._root_fd)
            self._root_fd = -1
            self._place.leave_to_parent()

    @Status.capture_exception  # type: ignore[untyped-decorator]
    def _put(self, key: bytes, mr: PageRegion) -> Any:
        staged_key = self._own_name()
        status = self._staging._put(staged_key, mr)
        if not status.is_ok():
            return status
        staged: Path = self._staging._key_to_filepath(staged_key)
        try:
            return Status.ok(None if self._publish(staged, key, replace=mr.replace) else ALREADY_THERE)
        finally:
            staged.unlink(missing_ok=True)

    @Status.capture_exception  # type: ignore[untyped-decorator]
    def _delete(self, key: bytes) -> Any:
        with self._directory_of(self.path_of(key), make=False):  # refuses to remove anything behind a link
            return super()._delete(key)

    def _own_name(self) -> bytes:
        """One byte, this thread's alone: a thread writes one page at a time."""
        if not hasattr(self._thread, "name"):
            self._thread.name = bytes([next(self._numbers)])
        name: bytes = self._thread.name
        return name

    def _publish(self, staged: Path, key: bytes, *, replace: bool) -> bool:
        """Whether the staged file became the object. False: another was there first."""
        path = self.path_of(key)
        with self._directory_of(path, make=True) as directory:
            if not replace:
                try:
                    os.link(staged, path.name, dst_dir_fd=directory)
                    return True
                except FileExistsError:
                    if stat.S_ISREG(os.stat(path.name, dir_fd=directory, follow_symlinks=False).st_mode):
                        return False
            os.replace(staged, path.name, dst_dir_fd=directory)  # what is no file (a planted link) goes
            return True

    @contextmanager
    def _directory_of(self, path: Path, *, make: bool) -> Iterator[int]:
        """A descriptor of the object's directory, reached through no link."""
        with ExitStack() as undo:
            at = self._root_fd
            for name in path.relative_to(self.root_path).parts[:-1]:
                try:
                    fd = os.open(name, _DIRECTORY, dir_fd=at)
                except FileNotFoundError:
                    if not make:
                        raise
                    try:
                        os.mkdir(name, 0o700, dir_fd=at)
                    except FileExistsError:
                        pass  # another writer was faster
                    fd = os.open(name, _DIRECTORY, dir_fd=at)
                undo.callback(os.close, fd)
                at = fd
            yield at
