"""Which LMCache this is."""

from __future__ import annotations

from hicache_core.plugin.engines import find_engine


def version() -> str:
    """The installed release, without what a build adds; empty where nothing says it."""
    found = find_engine("lmcache")
    return found.version.partition("+")[0] if found is not None else ""


def short_version() -> str:
    """Major and minor: LMCache promises nothing about the order of bytes between releases."""
    return ".".join(version().split(".")[:2]) or "unknown"
