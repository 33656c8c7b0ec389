"""What `hicache doctor` should say of a file store. Looks only; makes and changes nothing."""

from __future__ import annotations

import os
import stat

from hicache_file.options import FileOptions


def probe(options: FileOptions | None) -> list[str]:
    """Complaints, each with its mend; empty where all is well or no options are given."""
    if options is None:
        return []
    path = os.path.abspath(os.path.expanduser(options.root))
    if os.path.islink(path) and not options.allow_symlink:
        return [f"root {path} is a symbolic link; name {os.path.realpath(path)}, or set allow_symlink=true"]
    if not os.path.exists(path):
        parent = _nearest_parent(path)
        if os.path.isdir(parent) and os.access(parent, os.W_OK | os.X_OK):
            return []
        return [f"root {path} is not there and {parent} cannot be written; make it and give it to this user"]
    if not os.path.isdir(path):
        return [f"root {path} is not a directory; name another root"]
    return _of_directory(path, options)


def _of_directory(path: str, options: FileOptions) -> list[str]:
    found = []
    if not os.access(path, os.W_OK | os.X_OK):
        found.append(f"root {path} cannot be written by this user; give it to the user that runs the engine")
    if os.stat(path).st_mode & stat.S_IWOTH:
        found.append(f"root {path} can be written by every user; run chmod o-w {path}")
    status = os.statvfs(path)
    free = status.f_bavail * status.f_frsize
    if free < options.min_free_space:
        found.append(
            f"the file system at {path} has {free} bytes free, less than min_free_space={options.min_free_space}: "
            "every set will evict first; free some space or lower it"
        )
    total = status.f_blocks * status.f_frsize
    if options.max_size is not None and options.max_size > total:
        found.append(f"max_size={options.max_size} is more than the file system at {path} holds ({total} bytes)")
    if not status.f_favail and status.f_files:
        found.append(f"the file system at {path} has no inode left; remove files or make one with more")
    return found


def _nearest_parent(path: str) -> str:
    while not os.path.exists(path):
        path = os.path.dirname(path)
    return path
