"""Which LMCache this is, and the warning where the doors were never run against it."""

from __future__ import annotations

import functools
import logging

from hicache_core.plugin.engines import find_engine

_log = logging.getLogger(__name__)


def version() -> str:
    """The installed release, without what a build adds; empty where nothing says it."""
    found = find_engine("lmcache")
    return found.version.partition("+")[0] if found is not None else ""


def short_version() -> str:
    """Major and minor: LMCache promises nothing about the order of bytes between releases."""
    return ".".join(version().split(".")[:2]) or "unknown"


@functools.cache
def warn_of_untried_version() -> None:
    """One warning where this LMCache is none that the doors were run against."""
    found = find_engine("lmcache")
    if found is not None and found.untried:
        _log.warning("%s. Watch for failed L2 tasks", found.untried)
