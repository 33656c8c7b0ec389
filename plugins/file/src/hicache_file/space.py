"""Room in a root: reserving it before a write, settling afterwards, making it by eviction, counting it again.

All processes that share a root share one account. A set reserves the blocks that its pages will take, so that used
plus reserved never passes the cap, also when several processes write at once. Removal and counting are exclusive per
root. A process that dies leaves the account too high, never too low, and marked or found out by its record; the next
scan of the tree puts it right.
"""

from __future__ import annotations

import math
import os
import stat
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from hicache_core.types import Outcome
from hicache_file.account import Account, Debit, Totals
from hicache_file.directory import Directory
from hicache_file.locks import LockTimeout, RemovalLock
from hicache_file.stats import Counters
from hicache_file.victims import Victims
from hicache_file.walk import Stored, all_pages, allocated, leaves, pages
from hicache_file.writer import Swept, Writer

HOPELESS_SECONDS = 5.0
"""After a scan that found nothing to remove, sets are rejected for so long before the tree is scanned again."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What an operator allows. Bytes on disk."""

    max_size: int | None = None
    min_free_space: int = 0
    eviction_ratio: float = 0.9

    @property
    def any(self) -> bool:
        """Whether there is anything to keep to."""
        return self.max_size is not None or self.min_free_space > 0


class Space:
    """The room of one root as one open store sees it. Thread-safe."""

    def __init__(
        self,
        directory: Directory,
        account: Account,
        removal: RemovalLock,
        writer: Writer,
        limits: Limits,
        counters: Counters,
    ) -> None:
        self._directory, self._account, self._removal, self._writer = directory, account, removal, writer
        self._limits, self._counters = limits, counters
        self._victims = Victims()
        self._mine = 0
        """Bytes that this writer has reserved; changed inside the account's lock."""
        self._hopeless_until = -math.inf
        self._owed: deque[tuple[int, int, int]] = deque()
        """Sets that could not be settled yet; what they had reserved stays reserved meanwhile."""

    # -- around a write ------------------------------------------------------------------------------------------

    def reserve(self, sizes: Sequence[int], deadline: float | None) -> tuple[int, int]:
        """Room for the leading pages of a batch, of these sizes on disk: (how many fit, bytes reserved).

        Evicts where that helps. Leading pages go first since a prefix without its start is worth nothing. Raises
        LockTimeout where the account cannot be had.
        """
        count, need = self._leading(sizes, self._limits.max_size)
        if not count:
            return 0, 0
        with self._account.locked() as totals:
            if self._fits(totals, need):
                return count, self._take(totals, need)
        with suppress(LockTimeout):
            self.make_room(need, deadline)
        with self._account.locked() as totals:
            count, need = self._leading(sizes[:count], self._room(totals))
            return count, self._take(totals, need)

    def settle(self, reserved: int, added: int, files: int) -> None:
        """A set that had reserved so much has ended: it published `files` pages that take `added` bytes."""
        self._owed.append((reserved, added, files))
        try:
            with self._account.locked() as totals:
                self._settle_all(totals)
                over = self._limits.max_size is not None and totals.used > self._limits.max_size
        except LockTimeout:
            return  # the next set settles this one too
        if over:
            # The file system gave a page more blocks than its length needs.
            with suppress(LockTimeout):
                self.make_room(0, None)

    def replace(self, temporary: str, path: str, deadline: float | None) -> None:
        """Move a temporary over `path` and take what lay there off the account. Raises OSError, LockTimeout."""
        with self._removal.held(deadline):
            old = self._page_at(path)
            os.rename(temporary, path, src_dir_fd=self._writer.fd, dst_dir_fd=self._directory.fd)
            if old is not None and stat.S_ISREG(old.st_mode):
                with self._account.locked() as totals:
                    totals.used -= allocated(old)
                    totals.files -= 1

    # -- removal -------------------------------------------------------------------------------------------------

    def make_room(self, need: int, deadline: float | None, *, at_least: int = 0) -> None:
        """Evict the pages used longest ago until `need` more bytes fit. Raises LockTimeout.

        at_least: bytes to free in any case, for a file system that is full before the limits are reached.
        """
        with self._removal.held(deadline):
            with self._account.locked() as totals:
                swept = self._sweep(totals)
                excess = max(self._excess(totals, need), min(at_least, totals.used))
            if excess > 0 and time.monotonic() < self._hopeless_until:
                return
            # A dead writer's reservation counts as used until the tree is counted again.
            scan, may_scan, total = swept.dead > 0, True, 0
            while excess > 0:
                others = self._removed_by_others()
                if scan or not self._victims or self._victims.are_stale(others):
                    if not may_scan:
                        if not total:
                            self._hopeless_until = time.monotonic() + HOPELESS_SECONDS
                        return
                    try:
                        totals = self._look_again()
                    except OSError as error:  # what cannot be counted is not evicted; the account stays as it is
                        self._counters.note(error)
                        return
                    excess = self._excess(totals, need, evicting=total > 0)
                    excess = max(excess, min(at_least - total, totals.used))
                    scan, may_scan, others = False, False, 0
                freed = self._evict(excess, others) if excess > 0 else 0
                may_scan = may_scan or (freed > 0 and self._victims.truncated)
                excess, total = excess - freed, total + freed

    def remove(self, paths: Iterable[str | None], deadline: float | None) -> list[Outcome]:
        """Remove files: HIT (was there, is gone), MISS (also for None) or UNAVAILABLE. Raises LockTimeout."""
        outcomes = []
        with self._removal.held(deadline), Debit(self._account) as debit:
            for path in paths:
                try:
                    gone = path is not None and self._unlink(path, debit)
                    outcomes.append(Outcome.HIT if gone else Outcome.MISS)
                except OSError as error:
                    self._counters.note(error)
                    outcomes.append(Outcome.UNAVAILABLE)
        return outcomes

    def clear(self, namespace: str) -> int:
        """Remove every page of a namespace; how many there were. Raises LockTimeout."""
        count = 0
        for leaf in leaves(self._directory, namespace):
            # One leaf at a time, so that whoever needs room meanwhile does not wait for all of them.
            with self._removal.held(), Debit(self._account) as debit:
                for page in pages(self._directory, namespace, leaf):
                    try:
                        self._unlink(page.path, debit)
                    except OSError:
                        self._counters.add(skipped=1)
            count += debit.files
        self._directory.remove_empty(namespace)
        return count

    # -- counting ------------------------------------------------------------------------------------------------

    def reconcile(self, deadline: float | None = None) -> None:
        """Count the tree again. Exact unless another process writes meanwhile. Raises LockTimeout, OSError."""
        with self._removal.held(deadline):
            self._look_again()

    def mark_dirty(self) -> None:
        """Have the next `stats` count again: something may have been changed behind our back."""
        with self._account.locked() as totals:
            totals.dirty = True

    def sweep(self) -> Swept:
        """Remove what dead writers left."""
        with self._account.locked() as totals:
            return self._sweep(totals)

    def totals(self) -> Totals:
        """What the account says now."""
        with self._account.locked() as totals:
            return totals

    @property
    def limits(self) -> Limits:
        """What this store keeps to."""
        return self._limits

    # -- inside the locks ----------------------------------------------------------------------------------------

    def _sweep(self, totals: Totals) -> Swept:
        swept = self._writer.sweep(totals)
        self._counters.add(temporaries_cleaned=swept.temporaries)
        return swept

    def _page_at(self, path: str) -> os.stat_result | None:
        try:
            return os.stat(path, dir_fd=self._directory.fd, follow_symlinks=False)
        except OSError:
            return None

    def _settle_all(self, totals: Totals) -> None:
        while self._owed:
            reserved, added, files = self._owed.popleft()
            totals.used += added
            totals.files += files
            totals.settled += 1
            self._take(totals, -reserved)

    def _take(self, totals: Totals, nbytes: int) -> int:
        self._mine += nbytes
        totals.reserved += nbytes
        self._writer.record(self._mine)
        return nbytes

    def _room(self, totals: Totals) -> int | None:
        """Bytes that may still be reserved; None: no limit."""
        rooms = []
        if self._limits.max_size is not None:
            rooms.append(self._limits.max_size - totals.used - totals.reserved)
        if self._limits.min_free_space:
            rooms.append(self._directory.free_bytes() - totals.reserved - self._limits.min_free_space)
        return max(0, min(rooms)) if rooms else None

    def _fits(self, totals: Totals, need: int) -> bool:
        room = self._room(totals)
        return room is None or need <= room

    def _excess(self, totals: Totals, need: int, *, evicting: bool = False) -> int:
        """Bytes to evict so that `need` more fit; where the cap is the reason or we are `evicting`, to the ratio."""
        excess = 0
        wanted = totals.reserved + need
        cap = self._limits.max_size
        if cap is not None:
            low = int(cap * self._limits.eviction_ratio)
            low = low if wanted <= low else cap
            if totals.used + wanted > (low if evicting else cap):
                excess = totals.used + wanted - low
        if self._limits.min_free_space:
            excess = max(excess, self._limits.min_free_space + wanted - self._directory.free_bytes())
        return min(excess, totals.used)

    @staticmethod
    def _leading(sizes: Sequence[int], room: int | None) -> tuple[int, int]:
        total = 0
        for count, size in enumerate(sizes):
            if room is not None and total + size > room:
                return count, total
            total += size
        return len(sizes), total

    def _evict(self, excess: int, removed_by_others: int) -> int:
        """Remove victims until `excess` bytes are free, none is left or the list is out of date; bytes freed."""
        skipped = 0
        with Debit(self._account) as debit:
            while debit.bytes < excess and not self._victims.are_stale(removed_by_others):
                victim = self._victims.pop()
                if victim is None:
                    break
                verdict = self._still_unused(victim)
                if verdict is None:
                    self._victims.missed += 1
                elif verdict:
                    try:
                        self._unlink(victim.path, debit)
                    except OSError:
                        skipped += 1
        self._victims.removed += debit.files
        self._counters.add(evictions=debit.files, evicted_bytes=debit.bytes, skipped=skipped)
        return debit.bytes

    def _still_unused(self, victim: Stored) -> bool | None:
        """Whether nobody used it since the scan; None where it is gone."""
        status = self._page_at(victim.path)
        return None if status is None else status.st_mtime_ns <= victim.mtime_ns

    def _unlink(self, path: str, debit: Debit) -> bool:
        try:
            status = os.stat(path, dir_fd=self._directory.fd, follow_symlinks=False)
            os.unlink(path, dir_fd=self._directory.fd)
        except FileNotFoundError:
            return False
        if stat.S_ISREG(status.st_mode):
            debit.add(allocated(status))
        return True

    def _removed_by_others(self) -> int:
        with self._account.locked() as totals:
            return totals.removed - self._victims.removed_at_scan - self._victims.removed

    def _look_again(self) -> Totals:
        """Scan the tree: fresh victims, a corrected account, which is returned. Needs the removal lock."""
        with self._account.locked() as before:
            pass
        self._victims = Victims.of(all_pages(self._directory), removed_at_scan=before.removed)
        with self._account.locked() as totals:
            # Nothing was removed meanwhile; what was added may or may not have been seen. So the scan is never too
            # low, nor is an account that is not dirty, and where we were not alone the lower of the two is nearer.
            found = self._victims.total_bytes + totals.used - before.used
            alone = totals.settled == before.settled and not before.reserved and not totals.reserved
            if alone or not before.exact or found < totals.used:
                totals.files += self._victims.total_files - before.files
                totals.used = found
                totals.dirty = not alone
            totals.removing = False
            return totals
