"""The warning of a door that was never run against the engine it stands in."""

from __future__ import annotations

import functools
import logging

from hicache_core.plugin.engines import DOORS, FoundEngine, find_engine


@functools.cache
def warn_of_untried_version(package: str, version: str | None = None) -> None:
    """One warning in this process where the engine is none that its door was run against.

    package: a key of DOORS, and the name of the door's own package here, to whose logger it goes. version: what the
    engine says of itself, where that may be another than its distribution's.
    """
    found = find_engine(package) if version is None else FoundEngine(DOORS[package], version)
    if found is not None and found.untried:
        watch = f". {found.door.watch}" if found.door.watch else ""
        logging.getLogger(f"hicache_core.adapters.{package}").warning("hicache: %s%s", found.untried, watch)
