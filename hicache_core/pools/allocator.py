"""Which page slots of a pool are taken. Lowest first, so that pages allocated together lie together."""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt

from hicache_core.errors import IntegrityError, MisuseError
from hicache_core.types import Slots

_WINDOW = 8192


class SlotAllocator:
    """Allocates page slots 0 … capacity - 1. Thread-safe; memory is fixed at construction (5 bytes a slot).

    `alloc` gives the lowest free slots in ascending order: what was freed is reused before fresh memory is, and
    neighbours stay neighbours, which lets copies move runs of pages. A bitmap is the only state: freeing a slot
    twice, or one that is not of this pool, is found at once and changes nothing.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 0:
            raise MisuseError(f"a pool cannot have {capacity} slots")
        self.capacity = capacity
        self._free: npt.NDArray[np.bool_] = np.ones(capacity, dtype=np.bool_)
        self._order: npt.NDArray[np.int32] = np.empty(capacity, dtype=np.int32)
        self._available = capacity
        self._low = 0  # no slot below is free
        self._lock = threading.Lock()

    @property
    def available(self) -> int:
        """Free slots."""
        return self._available

    @property
    def allocated(self) -> int:
        """Taken slots."""
        return self.capacity - self._available

    def alloc(self, count: int) -> Slots | None:
        """`count` slots, ascending, as an array of the caller's own; None, nothing taken, where fewer are free."""
        if count < 0:
            raise MisuseError(f"cannot allocate {count} slots")
        with self._lock:
            if count > self._available:
                return None
            slots = self._lowest(count)
            self._free[slots] = False
            self._available -= count
            if count:
                self._low = int(slots[-1]) + 1
            return slots

    def _lowest(self, count: int) -> Slots:
        """The `count` lowest free slots; there are that many."""
        found: list[Slots] = []
        start, missing = self._low, count
        while missing:
            window = self._free[start : start + max(_WINDOW, missing)]
            here = np.flatnonzero(window)[:missing]
            if here.size:
                found.append(here + start)
                missing -= here.size
            start += window.size
        if len(found) == 1:
            return found[0].astype(np.int64, copy=False)
        return np.concatenate(found).astype(np.int64, copy=False) if found else np.empty(0, np.int64)

    def free(self, slots: Slots) -> None:
        """Give slots back, any order. Raises MisuseError, and frees nothing, on a foreign, free or repeated slot."""
        slots = self._checked(slots)
        if not slots.size:
            return
        with self._lock:
            twice = self._free[slots]
            if twice.any():
                raise MisuseError(f"slots {_some(slots[twice])} are already free: freed twice, or never allocated")
            order = np.arange(slots.size, dtype=np.int32)
            self._order[slots] = order
            repeated = self._order[slots] != order
            if repeated.any():
                raise MisuseError(f"slots {_some(slots[repeated])} are listed more than once in one call to free")
            self._free[slots] = True
            self._available += slots.size
            self._low = min(self._low, int(slots.min()))

    def is_allocated(self, slots: Slots) -> bool:
        """Whether every one of these slots is taken."""
        return not self._free[self._checked(slots)].any()

    def reset(self) -> None:
        """Free everything."""
        with self._lock:
            self._free[:] = True
            self._available, self._low = self.capacity, 0

    def check_integrity(self) -> None:
        """Raise IntegrityError unless allocated + free = capacity and no free slot hides below the search start."""
        with self._lock:
            counted = int(np.count_nonzero(self._free))
            if counted != self._available:
                raise IntegrityError(f"{counted} slots are free in the bitmap, {self._available} by count")
            if self._free[: self._low].any():
                raise IntegrityError(f"slot {int(np.argmax(self._free))} is free below the search start {self._low}")

    def _checked(self, slots: Slots) -> Slots:
        if not isinstance(slots, np.ndarray) or slots.ndim != 1 or slots.dtype.kind not in "iu":
            raise MisuseError("slots are a one-dimensional int64 array")
        if slots.size and (int(slots.min()) < 0 or int(slots.max()) >= self.capacity):
            foreign = slots[(slots < 0) | (slots >= self.capacity)]
            raise MisuseError(f"slots {_some(foreign)} are not of this pool, which has {self.capacity}")
        return slots


def _some(slots: Slots) -> str:
    """The first few slots, for a message."""
    shown = ", ".join(str(slot) for slot in slots[:8].tolist())
    return f"[{shown}{', …' if slots.size > 8 else ''}]"
