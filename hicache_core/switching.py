"""Sharing the GIL in processes of our own: commands, workers, measurements. A library must not set it for others."""

from __future__ import annotations

import sys

SWITCH_INTERVAL = 0.0005
"""Seconds that a busy Python thread may hold the GIL while I/O workers wait for it. Python's own is 0.005."""


def share_the_gil() -> None:
    """Set it for this process."""
    sys.setswitchinterval(SWITCH_INTERVAL)
