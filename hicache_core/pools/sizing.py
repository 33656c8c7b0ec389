"""How many pages the host pool gets: by ratio, by GB, or by what the machine has. Refused before memory is taken."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from hicache_core.errors import CapacityError, ConfigError
from hicache_core.pools.budget import MemoryBudget, default_reserve, memory_budget
from hicache_core.pools.geometry import KVGeometry

DEFAULT_RATIO = 2.0
AUTO_SHARE = 0.8
"""Share of what is available after the reserve that automatic sizing takes, at most."""


@dataclass(frozen=True, slots=True)
class HostSize:
    """A host pool's size and how it came about. `notes` are sentences for the user, each to be shown once."""

    num_pages: int
    nbytes: int
    source: str
    """`size`, `ratio` or `auto`."""
    ranks: int = 1
    notes: tuple[str, ...] = ()

    def describe(self) -> str:
        """One line with the bytes of this rank and of the machine."""
        total = (
            f", {gb(self.nbytes * self.ranks)} for the {self.ranks} ranks of this machine" if self.ranks > 1 else ""
        )
        return f"host pool: {self.num_pages:,} pages, {gb(self.nbytes)} (by {self.source}){total}"


def gb(nbytes: int) -> str:
    """Bytes as GB (10^9), or MB (10^6) below one."""
    return f"{nbytes / 1e9:.2f} GB" if nbytes >= 10**9 else f"{nbytes / 1e6:.1f} MB"


def check_capacity(
    nbytes: int,
    *,
    what: str = "host pool",
    ranks: int = 1,
    reserve: int | None = None,
    budget: MemoryBudget | None = None,
    mend: str = "",
) -> None:
    """Raise CapacityError, with the numbers, where `nbytes` for each of `ranks` processes does not fit.

    what: is to take them. reserve: bytes to leave to others (default_reserve where None).
    """
    budget = memory_budget() if budget is None else budget
    reserve = default_reserve(budget) if reserve is None else reserve
    room = max(0, budget.available - reserve) // ranks
    if nbytes > room:
        each = f" for each of {ranks} ranks" if ranks > 1 else ""
        raise CapacityError(
            f"{what} of {gb(nbytes)} ({nbytes:,} bytes){each} does not fit: {gb(budget.available)} of "
            f"{gb(budget.total)} are available ({budget.source}), {gb(reserve)} stay reserved, "
            f"{gb(room)} can be taken. {mend or 'Ask for less, or lower the reserve.'}"
        )


def size_host_pool(
    geometry: KVGeometry,
    device_pages: int,
    *,
    ratio: float | None = None,
    size_gb: float = 0.0,
    ranks: int = 1,
    reserve: int | None = None,
    budget: Callable[[], MemoryBudget] = memory_budget,
) -> HostSize:
    """Size of the host pool beside a device pool of `device_pages` pages. Takes no memory.

    size_gb (10^9 bytes) overrides ratio (host pages / device pages); with neither, the default ratio is cut to a
    share of what is available. ranks: processes on this machine that each take such a pool. Raises ConfigError on
    a negative or empty size, CapacityError where it does not fit.
    """
    if not 0 <= size_gb < math.inf or not (ratio is None or 0 < ratio < math.inf):
        raise ConfigError(
            f"hicache_size ({size_gb}) must be finite and not negative, hicache_ratio ({ratio}) finite and positive"
        )
    now = budget()
    kept = default_reserve(now) if reserve is None else reserve
    page = geometry.page_nbytes
    if size_gb > 0:
        pages, source, mend = int(size_gb * 1e9) // page, "size", "Lower hicache_size (GB per rank)"
    elif ratio is not None:
        pages, source, mend = int(device_pages * ratio), "ratio", "Lower hicache_ratio, or give hicache_size"
    else:
        room = int(max(0, now.available - kept) * AUTO_SHARE) // ranks
        pages, source, mend = min(int(device_pages * DEFAULT_RATIO), room // page), "auto", "Free memory"
    if pages < 1:
        raise CapacityError(
            f"the host pool would hold no page: one page is {gb(page)}, {gb(now.available)} are available "
            f"({now.source}) and {gb(kept)} stay reserved (sized by {source}). Give hicache_size at least one page."
        )
    check_capacity(pages * page, ranks=ranks, reserve=kept, budget=now, mend=f"{mend}, or lower the reserve.")
    return HostSize(pages, pages * page, source, ranks, _notes(pages, device_pages, source))


def _notes(pages: int, device_pages: int, source: str) -> tuple[str, ...]:
    notes = []
    if pages <= device_pages:
        notes.append(
            f"the host pool ({pages:,} pages) is not larger than the device pool ({device_pages:,}): pages are "
            "kept twice and little is gained"
        )
    if source == "auto" and pages < int(device_pages * DEFAULT_RATIO):
        notes.append(f"sized down from ratio {DEFAULT_RATIO} to {pages:,} pages by the memory that is available")
    return tuple(notes)
