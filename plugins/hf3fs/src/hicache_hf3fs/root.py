"""The root directory of a store: private, no link, and marked with the index that its slots belong to."""

from __future__ import annotations

import os
import stat

from hicache_core.errors import OpenError, OptionError

DIRECTORY_MODE, FILE_MODE = 0o700, 0o600
_MARK = "store-id"


class Root:
    """An open root directory."""

    def __init__(self, path: str, fd: int) -> None:
        self.path, self.fd = path, fd

    def subdirectory(self, name: str) -> int:
        """A descriptor of a directory below the root, made where it is missing, no link followed. Raises OSError."""
        try:
            os.mkdir(name, DIRECTORY_MODE, dir_fd=self.fd)
        except FileExistsError:
            pass
        return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=self.fd)

    def claim(self, store_id: str, index: str) -> None:
        """Mark the root as that of one index, or make sure that it is. Raises OpenError, OSError.

        Two indexes that give out slots of the same files would overwrite each other's pages.
        """
        data = f"{store_id}\n".encode()
        try:
            fd = os.open(_MARK, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, FILE_MODE, dir_fd=self.fd)
        except FileExistsError:
            found = self.mark()
            if found and found != store_id:
                raise OpenError(
                    f"the slots in {self.path} belong to another index ({found}) than {index} ({store_id}): two "
                    "would overwrite each other's pages. Name that index (index_dir or metadata_url), or another "
                    f"root; if the old index is lost, remove {self.path}/{_MARK} and {self.path}/slots"
                ) from None
            if found:
                return
            fd = os.open(_MARK, os.O_WRONLY | os.O_NOFOLLOW, dir_fd=self.fd)
        try:
            os.pwrite(fd, data, 0)
        finally:
            os.close(fd)

    def mark(self) -> str | None:
        """The id of the index that the slots belong to; empty where its writer died; None: not marked yet."""
        try:
            fd = os.open(_MARK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=self.fd)
        except FileNotFoundError:
            return None
        try:
            return os.read(fd, 100).decode("ascii", "replace").strip()
        finally:
            os.close(fd)

    def close(self) -> None:
        """Let go of the root."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def open_private(option: str, given: str, *, allow_symlink: bool = False, create: bool = True) -> Root:
    """Open a directory of our own, making it (0700) where it is missing.

    option: what the user calls it, for messages. Raises OptionError or OpenError with the mend.
    """
    path = _absolute(option, given)
    if os.path.islink(path) and not allow_symlink:
        raise OpenError(
            f"{option} {path} is a symbolic link to {os.readlink(path)}; name that directory, or set "
            "allow_symlink=true"
        )
    try:
        if create:
            os.makedirs(path, DIRECTORY_MODE, exist_ok=True)
        follow = 0 if allow_symlink else os.O_NOFOLLOW
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | follow)
    except (FileExistsError, NotADirectoryError) as error:
        raise OpenError(f"{option} {path}: {error.filename or path} is not a directory; name another") from error
    except OSError as error:
        looking = not create and isinstance(error, FileNotFoundError)
        mend = "whoever stores first makes it" if looking else "name a directory that this user can make and write"
        raise OpenError(
            f"{option} {path} cannot be opened ({error.strerror}: {error.filename or path}); {mend}"
        ) from error
    mode = os.fstat(fd).st_mode
    if mode & stat.S_IWOTH:
        os.close(fd)
        raise OpenError(
            f"{option} {path} can be written by every user (mode {stat.S_IMODE(mode):04o}), who could then give the "
            f"engine pages of theirs; run chmod o-w {path}, or name a directory below it"
        )
    return Root(path, fd)


def _absolute(option: str, given: str) -> str:
    if not given:
        raise OptionError(f"option {option} is empty; name a directory, such as {option}=/3fs/hicache")
    if "\0" in given:
        raise OptionError(f"option {option}={given!r} holds a NUL byte")
    path = os.path.expanduser(given)
    if path.startswith("~"):
        raise OptionError(f"option {option}={given!r} names the home of a user that is not there; write it in full")
    return os.path.abspath(path)
