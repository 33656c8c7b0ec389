"""What copies between L1 and L2 have in common, whichever way they go."""

from __future__ import annotations

from hicache_core.transfer.ack import Ack


class CopyBatch:
    """Chains of nodes that go as one copy; the part of an `Operation` that tells how it stands."""

    def __init__(self) -> None:
        self.ack: Ack | None = None
        """None until the copy is submitted."""

    @property
    def failed(self) -> bool:
        """Whether the copy has ended badly."""
        return self.ack is not None and self.ack.error is not None

    def poll(self) -> int:
        """-1 under way, 1 done, 0 failed."""
        if self.ack is None or not self.ack.done():
            return -1
        return 0 if self.failed else 1
