"""When a request stops waiting for L3."""

from __future__ import annotations

from hicache_core.clock import Clock
from hicache_core.config.model import HiCacheConfig


class StopVote:
    """One prefetch's patience. The clock of policy `timeout` starts at the first look at a request that must wait."""

    __slots__ = ("_clock", "_config", "_first_look")

    def __init__(self, config: HiCacheConfig, clock: Clock) -> None:
        self._config, self._clock = config, clock
        self._first_look: float | None = None

    def wants_to_stop(self, tokens: int) -> bool:
        """Whether this rank would admit the request without waiting any longer for `tokens` tokens of L3."""
        policy = self._config.hicache_storage_prefetch_policy
        if policy == "best_effort":
            return True
        if policy == "wait_complete":
            return False
        now = self._clock()
        if self._first_look is None:
            self._first_look = now
        return now - self._first_look >= patience(self._config, tokens)


def patience(config: HiCacheConfig, tokens: int) -> float:
    """Seconds that policy `timeout` waits for `tokens` tokens: base + per_ki_token · tokens / 1024, capped by max."""
    seconds = config.prefetch_timeout_base + config.prefetch_timeout_per_ki_token * tokens / 1024
    longest = config.prefetch_timeout_max
    return seconds if longest is None else min(seconds, longest)
