"""What a node holds of one pool.

A tree of a plain model has one pool, full-attention KV, and its record is the node itself (`Node` derives from
`SlotRecord`). A hybrid model adds one record of this shape per further pool to each node; what differs between
pools is only how a record is divided when its node is split, and that is the method `divide`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hicache_core.types import Slots


def owned(slots: npt.ArrayLike) -> Slots:
    """A read-only copy: int64[n] that neither the caller nor whoever gets it from the tree can change.

    A copy, not a view: a view would keep the array of a whole request alive for one page of it.
    """
    copy = np.array(slots, dtype=np.int64)
    copy.setflags(write=False)
    return copy


NO_SLOTS: Slots = owned(())
_INT64 = np.dtype(np.int64)


def joined(parts: list[Slots]) -> Slots:
    """All slots in one read-only array; a single part is that array itself."""
    if len(parts) == 1:
        return parts[0]
    # Joining as bytes takes less than half the time of np.concatenate for the many small arrays of a path.
    return np.frombuffer(b"".join(parts), _INT64) if parts else NO_SLOTS  # type: ignore[arg-type]


class SlotRecord:
    """Where the pages of a node lie in one pool, and who holds them there."""

    __slots__ = ("device", "host", "host_lock_ref", "lock_ref")

    device: Slots | None
    """L1 page slots, int64[pages], read-only; None: not on the device."""
    host: Slots | None
    """L2 page slots, int64[pages], read-only; None: not in host memory."""
    lock_ref: int
    """Device locks whose path to the root passes here."""
    host_lock_ref: int
    """Host locks on this node."""

    def divide(self, upper: SlotRecord, pages: int) -> None:
        """Give the first `pages` pages to `upper`; keep the rest. Locks hold on both halves."""
        if self.device is not None:
            upper.device, self.device = owned(self.device[:pages]), owned(self.device[pages:])
        if self.host is not None:
            upper.host, self.host = owned(self.host[:pages]), owned(self.host[pages:])
        upper.lock_ref = self.lock_ref
        upper.host_lock_ref = self.host_lock_ref
