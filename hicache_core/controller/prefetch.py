"""L3 → L2: look up, take memory for what is there, read, and put what came into the host tree.

Memory is taken only once the hit is known. Reads go in batches of at most 128 pages; the pages that came without a
gap are the progress, and what every rank has of it is what becomes visible. A batch that is still inside a store
when the prefetch stops keeps its pages until it returns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np

from hicache_core.controller.eviction import Evictor
from hicache_core.controller.memory import take_some
from hicache_core.controller.progress import StopVote
from hicache_core.controller.reasons import Reason, Tier, store_reason
from hicache_core.controller.request import Request
from hicache_core.controller.state import State
from hicache_core.tree.components import NO_SLOTS
from hicache_core.tree.locking import HostLock
from hicache_core.types import BATCH_PAGES, Outcome, Slots

if TYPE_CHECKING:
    from hicache_core.storage.handles import Handle
    from hicache_core.storage.operations import ExistsHandle
    from hicache_core.tree.results import MatchResult


class Phase(Enum):
    """Where a prefetch stands."""

    QUERY = "query"
    READ = "read"
    ENDED = "ended"


@dataclass(slots=True)
class _Read:
    """One batch."""

    handle: Handle[list[Outcome]]
    slots: Slots


class PrefetchOperation:
    """One request's prefetch. An `Operation`: first the answer of the lookup, then the pages that were read."""

    def __init__(
        self,
        path: PrefetchPath,
        request: Request,
        start: int,
        hashes: list[str],
        vote: StopVote,
        anchor: HostLock | None,
    ) -> None:
        self.path, self.request, self.vote = path, request, vote
        self.start = start
        """First page of the request that is asked for."""
        self.hashes = hashes
        self.anchor = anchor
        """Keeps the pages before `start` in L2 meanwhile."""
        self.phase = Phase.QUERY
        self.query: ExistsHandle | None = None
        self.hit_pages = 0
        self.reads: list[_Read] = []
        self.reason: Reason | None = None
        """Why it brought fewer pages than were asked for."""

    @property
    def pages(self) -> int:
        """Pages that are waited for: those asked for, then those found."""
        return len(self.hashes) if self.phase is Phase.QUERY else sum(len(read.slots) for read in self.reads)

    def poll(self) -> int:
        """-1 under way, then pages found or pages read."""
        if self.phase is Phase.QUERY:
            assert self.query is not None
            return self.query.result() if self.query.done() else -1
        return self.completed() if all(read.handle.done() for read in self.reads) else -1

    def completed(self) -> int:
        """Pages that have come, without a gap."""
        pages = 0
        for read in self.reads:
            if not read.handle.done():
                return pages
            run = hit_run(read.handle.result())
            pages += run
            if run < len(read.slots):
                return pages
        return pages

    def shortfall(self) -> Reason:
        """Why the page after the last that came did not come; where all came here, another rank lacks it."""
        for read in self.reads:
            if not read.handle.done():
                return Reason.DEADLINE
            outcomes = read.handle.result()
            run = hit_run(outcomes)
            if run < len(outcomes):
                return store_reason(outcomes[run].value)
        return Reason.UNAVAILABLE

    def commit(self, agreed: int) -> None:
        """See Operation."""
        if self.phase is Phase.QUERY:
            self.path.found(self, agreed)
        else:
            self.path.end(self, agreed, None)


def hit_run(outcomes: Sequence[Outcome]) -> int:
    """Leading hits."""
    if all(outcome is Outcome.HIT for outcome in outcomes):
        return len(outcomes)
    return next(index for index, outcome in enumerate(outcomes) if outcome is not Outcome.HIT)


class PrefetchPath:
    """Starts, advances and stops prefetches."""

    def __init__(self, state: State, evictor: Evictor) -> None:
        self._state, self._evictor = state, evictor
        self.running: dict[int, PrefetchOperation] = {}
        self.held_pages = 0
        """L2 pages that prefetches have, or will have once their lookup answers."""

    @property
    def limit_pages(self) -> int:
        """L2 pages that prefetches may hold at once."""
        host = self._state.host_pool
        return 0 if host is None else int(host.capacity * self._state.config.prefetch_capacity_share)

    def start(self, request: Request, match: MatchResult) -> bool:
        """Ask L3 for the pages after `match`; False (and the reason in `request.ended`) where it is not asked."""
        state, size = self._state, self._state.page_size
        start = match.matched_pages
        wanted = request.reusable_pages - start
        if wanted <= 0:
            return False
        threshold = max(state.config.prefetch_threshold, size)
        if state.session is None or state.host_pool is None:
            return self._decline(request, Reason.NO_STORAGE)
        if wanted * size < threshold:
            return self._decline(request, Reason.BELOW_THRESHOLD)
        room = self.limit_pages - self.held_pages
        if room < wanted and room * size < threshold:
            return self._decline(request, Reason.RATE_LIMITED)
        hashes = self._hashes(request, match, start + wanted)[start:]
        believed = state.sync.minimum([state.negative.run(hashes)])[0]
        if believed * size < threshold:
            return self._decline(request, Reason.NEGATIVE_CACHE)
        asked = min(wanted, room, believed)
        if asked < wanted:
            request.ended = Reason.NEGATIVE_CACHE if asked == believed else Reason.RATE_LIMITED
        self._launch(request, match, hashes[:asked])
        return True

    def found(self, operation: PrefetchOperation, hits: int) -> None:
        """The lookup has been answered on all ranks."""
        state, request = self._state, operation.request
        asked = len(operation.hashes)
        if hits < asked:
            operation.reason = self._query_reason(operation, hits)
        request.account.found(Tier.STORAGE, hits * state.page_size)
        operation.hit_pages = hits
        least = -(-max(state.config.prefetch_threshold, state.page_size) // state.page_size)
        if hits < least:
            return self._revoke(operation, Reason.BELOW_THRESHOLD if hits else None)
        assert state.host_pool is not None
        slots = take_some(state, state.host_pool, hits, least, self._evictor.evict_host)
        if slots is None:
            return self._revoke(operation, Reason.HOST_CAPACITY)
        if len(slots) < hits:
            operation.reason = Reason.HOST_CAPACITY
            request.account.lost(Tier.STORAGE, Reason.HOST_CAPACITY, (hits - len(slots)) * state.page_size)
        self.held_pages += len(slots) - asked
        self._read(operation, slots)

    def should_stop(self, operation: PrefetchOperation) -> bool:
        """Whether a rank's patience has ended; every rank gets the same answer."""
        stop = operation.vote.wants_to_stop(operation.pages * self._state.page_size)
        return bool(self._state.sync.maximum([int(stop)])[0])

    def stop(self, operation: PrefetchOperation, reason: Reason, *, keep: bool = True) -> None:
        """End it now: what has come on all ranks becomes visible, the rest is lost for `reason`.

        keep: False where the request is gone, so that nothing becomes visible.
        """
        self._state.mailbox.forget(operation)
        if operation.phase is Phase.QUERY:
            assert operation.query is not None
            operation.query.cancel()
            self._revoke(operation, reason)
        elif operation.phase is Phase.READ:
            completed = self._state.sync.minimum([operation.completed()])[0] if keep else 0
            self.end(operation, completed, reason)

    def end(self, operation: PrefetchOperation, completed: int, stopped: Reason | None) -> None:
        """Reading is over: `completed` pages of it count."""
        state, request = self._state, operation.request
        taken = operation.pages
        operation.phase = Phase.ENDED
        kept = self._insert(operation, completed) if completed else 0
        if completed < taken:
            operation.reason = Reason.ABORTED if stopped is Reason.ABORTED else operation.shortfall()
        if kept < completed:
            operation.reason = Reason.EVICTED
        if kept < taken and operation.reason is not None:
            request.account.lost(Tier.STORAGE, operation.reason, (taken - kept) * state.page_size)
        self._give_back(operation, completed)
        self.held_pages -= taken
        request.storage_pages = range(operation.start, operation.start + kept)
        self._finish(operation)

    # parts

    def _decline(self, request: Request, reason: Reason) -> bool:
        request.ended = reason
        self._state.declined[reason.value] += 1
        return False

    def _hashes(self, request: Request, match: MatchResult, pages: int) -> list[str]:
        """The request's page hashes, those of the matched part from the tree where it knows them."""
        node = match.best_match_node
        if not node.is_root and node.hashes is not None:
            request.know_hashes(self._state.tree.path_hashes(node))
        return request.hashes(pages)

    def _launch(self, request: Request, match: MatchResult, hashes: list[str]) -> None:
        state = self._state
        session = state.session
        assert session is not None
        node = match.best_match_node
        anchor = None if node.is_root else state.tree.inc_host_lock(node)
        vote = StopVote(state.config, state.clock)
        operation = PrefetchOperation(self, request, match.matched_pages, hashes, vote, anchor)
        request.prefetch = operation
        self.running[id(operation)] = operation
        self.held_pages += len(hashes)
        state.mailbox.watch(operation)
        operation.query = session.submit_exists(hashes)
        operation.query.add_done_callback(lambda _: state.mailbox.post(operation))

    def _query_reason(self, operation: PrefetchOperation, hits: int) -> Reason:
        state = self._state
        assert operation.query is not None
        reason = store_reason(operation.query.reason)
        if reason is Reason.MISS:
            missing = operation.hashes[hits]
            if missing in state.unstored:
                return Reason.NEVER_STORED
            state.negative.missing(missing)
        return reason

    def _read(self, operation: PrefetchOperation, slots: Slots) -> None:
        state = self._state
        session = state.session
        assert session is not None
        operation.phase = Phase.READ
        state.mailbox.watch(operation)
        for start in range(0, len(slots), BATCH_PAGES):
            part = slots[start : start + BATCH_PAGES]
            handle = session.submit_get_v1(operation.hashes[start : start + len(part)], part)
            operation.reads.append(_Read(handle, part))
        for read in operation.reads:
            read.handle.add_done_callback(lambda _: state.mailbox.post(operation))

    def _insert(self, operation: PrefetchOperation, completed: int) -> int:
        """Put the first pages into the host tree; how many are there now."""
        state, request = self._state, operation.request
        assert state.host_pool is not None
        slots, hashes = self._slots(operation)[:completed], operation.hashes[:completed]
        result = state.tree.insert_host(
            request.key(operation.start + completed),
            slots,
            hashes,
            start_page=operation.start,
            priority=request.priority,
        )
        state.host_pool.free(result.duplicates)
        state.counters.prefetched += result.inserted_pages
        if not result.anchored:
            return 0
        request.hold(state.tree, result.last_node)
        return completed

    def _slots(self, operation: PrefetchOperation) -> Slots:
        parts = [read.slots for read in operation.reads]
        return parts[0] if len(parts) == 1 else np.concatenate(parts) if parts else NO_SLOTS

    def _give_back(self, operation: PrefetchOperation, completed: int) -> None:
        """Free the pages that did not count, those inside a store once it has returned them."""
        position = 0
        for read in operation.reads:
            read.handle.cancel()
            unused = read.slots[max(0, completed - position) :]
            position += len(read.slots)
            if len(unused):
                self._state.free_when_returned(read.handle, unused)

    def _revoke(self, operation: PrefetchOperation, reason: Reason | None) -> None:
        """End it before anything was read."""
        if reason is not None:
            operation.reason = reason
        if operation.hit_pages:
            lost = operation.hit_pages * self._state.page_size
            operation.request.account.lost(Tier.STORAGE, operation.reason or Reason.CANCELLED, lost)
        self.held_pages -= len(operation.hashes)
        operation.phase = Phase.ENDED
        self._finish(operation)

    def _finish(self, operation: PrefetchOperation) -> None:
        if operation.anchor is not None:
            self._state.tree.dec_host_lock(operation.anchor)
            operation.anchor = None
        del self.running[id(operation)]
        request = operation.request
        request.prefetch = None
        if operation.reason is not None:
            request.ended = operation.reason
