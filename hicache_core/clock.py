"""Time as a thing that can be handed in, so that tests need not wait."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds on a clock that never goes back."""

    def __call__(self) -> float: ...


monotonic: Clock = time.monotonic


class ManualClock:
    """A clock that moves when it is told to."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Move forward."""
        if seconds < 0:
            raise ValueError(f"a monotonic clock cannot go back ({seconds} s)")
        self.now += seconds
