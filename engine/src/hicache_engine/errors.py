"""What the engine refuses, as branches of the core's error tree."""

from __future__ import annotations

from hicache_core.errors import ConfigError, HiCacheError


class ModelFileError(ConfigError):
    """A model file that is missing, damaged, or of a kind that is not read here. Says which file and what to do."""


class RequestError(HiCacheError, ValueError):
    """A request that can never be served (too long, no tokens, a parameter out of range). Names the parameter."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class RequestAborted(HiCacheError):
    """A request that ended before it was done; the cause says why."""
