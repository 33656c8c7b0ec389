"""The factory of backend `mooncake`."""

from __future__ import annotations

from hicache_core.types import OpenContext
from hicache_mooncake.backend import MooncakeBackend
from hicache_mooncake.connect import connect
from hicache_mooncake.options import MooncakeOptions


def open_mooncake(options: MooncakeOptions, ctx: OpenContext) -> MooncakeBackend:
    """Open a client of the store. Raises OptionError, OpenError, CapacityError or MissingDependencyError."""
    return MooncakeBackend(connect(options), options)
