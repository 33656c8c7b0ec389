"""What `hicache doctor` should say of an AIBrix store. Looks only; makes and changes nothing."""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, version

from hicache_aibrix.options import INSTALL, AibrixOptions


def probe(options: AibrixOptions | None) -> list[str]:
    """Complaints, each with its mend; empty where all is well."""
    found = _of_version()
    return found if options is None else found + _of_root(options)


def _of_version() -> list[str]:
    try:
        installed = version("aibrix_kvcache")
    except PackageNotFoundError:
        return [f"aibrix_kvcache is not installed: {INSTALL}"]
    if installed.split(".")[:2] != ["0", "8"]:
        return [f"aibrix_kvcache {installed} is installed, this backend was made for 0.8: {INSTALL}"]
    return []


def _of_root(options: AibrixOptions) -> list[str]:
    path = os.path.realpath(os.path.expanduser(options.root))
    place = path
    while not os.path.exists(place):
        place = os.path.dirname(place)
    if not os.path.isdir(place):
        return [f"root {path}: {place} is not a directory; name another root"]
    if not os.access(place, os.W_OK | os.X_OK):
        return [f"root {path}: {place} cannot be written by this user; give it to the user that runs the engine"]
    return []
