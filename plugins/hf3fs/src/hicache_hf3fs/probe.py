"""What `hicache doctor` should say of an hf3fs store. Looks only; makes and changes nothing."""

from __future__ import annotations

import os
import stat

from hicache_core.errors import HiCacheError
from hicache_hf3fs import usrbio
from hicache_hf3fs.options import Hf3fsOptions


def probe(options: Hf3fsOptions | None) -> list[str]:
    """Complaints, each with its mend; empty where all is well or no options are given."""
    if options is None:
        return []
    said = _of_directory("root", options.root, options.allow_symlink)
    if options.index_dir is not None:
        said += _of_directory("index_dir", options.index_dir, options.allow_symlink)
    try:
        found = usrbio.find(os.path.abspath(os.path.expanduser(options.root)), options.io)
        if found is not None and options.index_dir is None and options.metadata_url is None:
            said.append("root is on a 3FS mount: set index_dir (one node) or metadata_url (several)")
    except HiCacheError as error:
        said.append(str(error))
    if options.metadata_url is not None:
        from hicache_hf3fs.client import RemoteIndex

        try:
            RemoteIndex(options.metadata_url, options.metadata_token, options.touch_interval).close()
        except HiCacheError as error:
            said.append(str(error))
    return said


def _of_directory(option: str, given: str, allow_symlink: bool) -> list[str]:
    path = os.path.abspath(os.path.expanduser(given))
    if os.path.islink(path) and not allow_symlink:
        return [f"{option} {path} is a symbolic link; name {os.path.realpath(path)}, or set allow_symlink=true"]
    if not os.path.exists(path):
        parent = _nearest_parent(path)
        if os.path.isdir(parent) and os.access(parent, os.W_OK | os.X_OK):
            return []
        return [f"{option} {path} is not there and {parent} cannot be written; make it and give it to this user"]
    if not os.path.isdir(path):
        return [f"{option} {path} is not a directory; name another"]
    if os.stat(path).st_mode & stat.S_IWOTH:
        return [f"{option} {path} can be written by every user; run chmod o-w {path}"]
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        return [f"{option} {path} cannot be written by this user; give it to them"]
    return []


def _nearest_parent(path: str) -> str:
    while not os.path.exists(path):
        path = os.path.dirname(path)
    return path
