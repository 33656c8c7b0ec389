"""The root directory of a store, held open, and the way from a key to its file below it.

Every path is relative to the descriptor of the root, so nothing that is done to the root's own path later can lead
us elsewhere. A namespace or leaf directory is used only after it was seen to be a real directory of an owner that
we trust; what we make is 0700, so that nobody else can put a link in its place afterwards.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from zlib import crc32

from hicache_core.errors import OpenError, OptionError
from hicache_core.types import MAX_KEY_LENGTH
from hicache_file.names import LEAF_COUNT, LEAF_MASK, LEAVES, legal_key, locate, plain_name

DIRECTORY_MODE = 0o700
FILE_MODE = 0o600
_NAMESPACES_KEPT = 256


class Directory:
    """An open root. Methods that take a key want a legal one (`names.legal_key`); paths are relative to `fd`."""

    def __init__(self, path: str, fd: int) -> None:
        self.path, self.fd = path, fd
        status = os.fstat(fd)
        self.device = status.st_dev
        self._owners = {os.geteuid(), status.st_uid, 0}
        # namespace -> path of each leaf directory that was found good, "" where not looked at yet
        self._leaves: dict[str, list[str]] = {}

    def find(self, key: str) -> str | None:
        """Path of the key's file, or None where the key is illegal or its directory is not there."""
        return next(self.find_each((key,)))

    def find_each(self, keys: Iterable[str]) -> Iterator[str | None]:
        """`find` for each key. What nearly all come to is quick: a namespace that was seen, a rest that is a name."""
        known, plain, last = self._leaves, plain_name, None
        leaves: list[str] | None = None
        for key in keys:
            namespace, _, rest = key.partition("/")
            if namespace != last:
                leaves, last = known.get(namespace), namespace
            if leaves is not None and plain(rest) and len(key) <= MAX_KEY_LENGTH:
                prefix = leaves[crc32(rest.encode()) & LEAF_MASK]
                if prefix:
                    yield prefix + rest
                    continue
            yield self._look(key)
            leaves = known.get(namespace)

    def _look(self, key: str) -> str | None:
        if not legal_key(key):
            return None
        namespace, number, name = locate(key)
        leaves = self._leaves.get(namespace)
        if leaves is None:
            if not self._is_ours(namespace):
                return None
            leaves = self._remember(namespace)
        prefix = leaves[number]
        if not prefix:
            if not self._is_ours(f"{namespace}/{LEAVES[number]}"):
                return None
            prefix = leaves[number] = f"{namespace}/{LEAVES[number]}/"
        return prefix + name

    def make(self, key: str) -> str:
        """Path of the key's file; its directory is made where it is missing.

        Raises OSError, NotADirectoryError where something else lies in the directory's place.
        """
        namespace, number, name = locate(key)
        leaf = f"{namespace}/{LEAVES[number]}"
        if namespace not in self._leaves:
            self._make_one(namespace)
        self._make_one(leaf)
        self._remember(namespace)[number] = f"{leaf}/"
        return f"{leaf}/{name}"

    def _make_one(self, path: str) -> None:
        try:
            os.mkdir(path, DIRECTORY_MODE, dir_fd=self.fd)
        except FileExistsError:
            if not self._is_ours(path):
                raise NotADirectoryError(
                    f"{self.path}/{path} is no directory of this store (a link, a file, or another user's)"
                ) from None

    def forget(self, namespace: str) -> None:
        """Look again at the directories of this namespace: they may have been removed."""
        self._leaves.pop(namespace, None)

    def remove_empty(self, namespace: str) -> None:
        """Remove the namespace's directories that are empty; a writer that is about to use one makes it again."""
        self.forget(namespace)
        try:
            fd = self.open_directory(namespace)
        except OSError:
            return
        try:
            for leaf in LEAVES:
                with suppress(OSError):
                    os.rmdir(leaf, dir_fd=fd)
        finally:
            os.close(fd)
        with suppress(OSError):
            os.rmdir(namespace, dir_fd=self.fd)

    def open_directory(self, path: str) -> int:
        """A descriptor of a directory below the root, following no link. Raises OSError."""
        fd = os.dup(self.fd)
        for part in path.split("/"):
            try:
                inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=fd)
            finally:
                os.close(fd)
            fd = inner
        return fd

    def free_bytes(self) -> int:
        """Bytes that we may still use on the file system."""
        status = os.fstatvfs(self.fd)
        return status.f_bavail * status.f_frsize

    def total_bytes(self) -> int:
        """Size of the file system in bytes."""
        status = os.fstatvfs(self.fd)
        return status.f_blocks * status.f_frsize

    def close(self) -> None:
        """Let go of the root."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _remember(self, namespace: str) -> list[str]:
        if len(self._leaves) >= _NAMESPACES_KEPT and namespace not in self._leaves:
            self._leaves.clear()
        return self._leaves.setdefault(namespace, [""] * LEAF_COUNT)

    def _is_ours(self, path: str) -> bool:
        try:
            status = os.stat(path, dir_fd=self.fd, follow_symlinks=False)
        except OSError:
            return False
        return stat.S_ISDIR(status.st_mode) and status.st_uid in self._owners


def open_directory(root: str, *, allow_symlink: bool = False, create: bool = True) -> Directory:
    """Open the root of a store, making it where it is missing. Raises OptionError or OpenError with the mend."""
    if not root:
        raise OptionError("option root is empty; give the store its own directory, such as root=/var/cache/hicache")
    if "\0" in root:
        raise OptionError(f"option root={root!r} holds a NUL byte")
    path = os.path.expanduser(root)
    if path.startswith("~"):
        raise OptionError(f"option root={root!r} names the home of a user that is not there; write the path in full")
    path = os.path.abspath(path)
    if os.path.islink(path) and not allow_symlink:
        raise OpenError(
            f"root {path} is a symbolic link to {os.readlink(path)}; name that directory, or set allow_symlink=true"
        )
    try:
        if create:
            os.makedirs(path, DIRECTORY_MODE, exist_ok=True)
        follow = 0 if allow_symlink else os.O_NOFOLLOW
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | follow)
    except (FileExistsError, NotADirectoryError) as error:
        raise OpenError(f"root {path}: {error.filename or path} is not a directory; name another root") from error
    except OSError as error:
        looking = not create and isinstance(error, FileNotFoundError)
        mend = "whoever stores first makes it" if looking else "name a directory that this user can make and write"
        raise OpenError(
            f"root {path} cannot be opened ({error.strerror}: {error.filename or path}); {mend}"
        ) from error
    try:
        _refuse_open_to_all(path, os.fstat(fd))
        return Directory(path, fd)
    except BaseException:
        os.close(fd)
        raise


def _refuse_open_to_all(path: str, status: os.stat_result) -> None:
    if status.st_mode & stat.S_IWOTH:
        raise OpenError(
            f"root {path} can be written by every user (mode {stat.S_IMODE(status.st_mode):04o}), who could then "
            f"give the engine pages of theirs; run chmod o-w {path}, or name a directory below it"
        )
