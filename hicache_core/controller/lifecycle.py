"""A request's life: queue, prefetch, admission, commit, end."""

from __future__ import annotations

import numpy.typing as npt

from hicache_core.controller.load import FAILED
from hicache_core.controller.memory import take
from hicache_core.controller.reasons import Reason
from hicache_core.controller.request import Request, RequestState
from hicache_core.controller.wiring import Wiring
from hicache_core.errors import MisuseError
from hicache_core.tree.results import MatchResult
from hicache_core.types import Slots


class RequestLife(Wiring):
    """What an engine calls for a request, and for pages that belong to none."""

    def new_request(
        self,
        rid: str,
        tokens: npt.ArrayLike,
        *,
        extra_key: str | None = None,
        cache_salt: str | None = None,
        priority: int = 0,
        reuse_limit: int | None = None,
    ) -> Request:
        """A request that waits. reuse_limit: at most so many leading tokens may come from the cache.

        Raises ValueError for a token id outside 0 … 2**32 - 1.
        """
        self._open()
        request = Request(
            rid,
            tokens,
            page_size=self.page_size,
            account=self.ledger.open(),
            extra_key=extra_key,
            cache_salt=cache_salt,
            priority=priority,
            reuse_limit=reuse_limit,
        )
        self._requests[id(request)] = request
        return request

    def prefetch_from_storage(self, request: Request) -> bool:
        """Look in L3 for what L1 and L2 lack of a waiting request; whether it was asked (else: `request.ended`)."""
        self._expect(request, RequestState.WAITING)
        if request.prefetch is not None:
            return True
        request.ended = None
        return self._prefetch.start(request, self._admission.match(request.key(request.reusable_pages)))

    def check_prefetch_progress(self, request: Request) -> bool:
        """Whether the request may be admitted: it waits for nothing, or no longer. What came is in L2 then."""
        operation = request.prefetch
        if operation is None:
            return True
        if not self._prefetch.should_stop(operation):
            return False
        self._prefetch.stop(operation, Reason.DEADLINE)
        return True

    def match_prefix(
        self,
        what: Request | npt.ArrayLike,
        *,
        extra_key: str | None = None,
        cache_salt: str | None = None,
        touch: bool = True,
    ) -> MatchResult:
        """What L1 and L2 have of a request (up to its reuse limit) or of tokens."""
        if isinstance(what, Request):
            return self._admission.match(what.key(what.reusable_pages), touch=touch)
        return self._admission.match(self.tree.key(what, extra_key, cache_salt), touch=touch)  # type: ignore[arg-type]

    def init_load_back(self, request: Request, *, mem_quota_pages: int | None = None) -> int:
        """Admit a waiting request: lock its prefix in L1, load back what is in L2 only; pages that are loading.

        All of the L2 part is loaded or none (too few tokens, more than `mem_quota_pages`, no room in L1 even after
        evicting). Then `request.slots`, `prefix_pages` and `report` are set. A prefetch that is under way stops.
        """
        self._expect(request, RequestState.WAITING)
        if request.prefetch is not None:
            self._prefetch.stop(request.prefetch, Reason.DEADLINE)
        return self._admission.admit(request, mem_quota_pages)

    def ready_to_load_host_cache(self) -> int:
        """Start the loads that were queued since the last call, as one; the id to wait for, -1 for nothing."""
        producer = self._load.start()
        if self._load.has_failed and any(request.load_failed for request in self._requests.values()):
            return FAILED
        return producer

    def wait_layer(self, producer_id: int, layer: int) -> None:
        """Before a layer's attention: return when its pages are in L1.

        Raises TransferError where a load failed; then `abandon` the batch's requests that have `load_failed` (after
        the next `check_hicache_events`), or all of them.
        """
        self._load.wait_layer(producer_id, layer)

    def alloc_pages(self, pages: int) -> Slots | None:
        """Device pages for new tokens, evicting if short; None where there is no room now. Give them to
        `request.add_slots`."""
        self._open()
        return take(self._state, self._state.device_pool, pages, self._evictor.evict_device)

    def cache_unfinished_req(self, request: Request, computed_tokens: int) -> None:
        """At a chunk's commit: the whole pages of the first `computed_tokens` tokens are computed and may be shared.

        Where another request computed the same pages first, `request.slots` changes to the shared ones.
        """
        self._expect(request, RequestState.ADMITTED)
        self._insertion.commit(request, self._computed_pages(request, computed_tokens))

    def cache_finished_req(self, request: Request, computed_tokens: int | None = None) -> None:
        """At a request's end: insert what was computed (None: all that has pages), free and unlock the rest."""
        self._expect(request, RequestState.ADMITTED)
        if computed_tokens is None:
            computed_tokens = min(len(request), len(request.slots) * self.page_size)
        self._insertion.commit(request, self._computed_pages(request, computed_tokens))
        self._insertion.release(request)
        self._end(request, RequestState.FINISHED)

    def abort_req(self, request: Request) -> None:
        """End a request in any state; keep nothing of it that was not inserted."""
        if request.state in (RequestState.FINISHED, RequestState.ABORTED):
            return
        self._let_go(request)
        self._end(request, RequestState.ABORTED)

    def abandon(self, request: Request) -> None:
        """Send an admitted request back to waiting; its pages are freed. It may be prefetched and admitted again."""
        self._expect(request, RequestState.ADMITTED, failed=True)
        if self._load.running:  # a layer's failure is told before that of its copy
            self._load.settle()
            self._mark_failed()
        if request.load_failed:
            self._admission.retract(request)
        self._let_go(request)
        request.state, request.load_failed, request.prefix_pages = RequestState.WAITING, False, 0
        self._load.reap()

    # pages outside a request

    def insert(
        self,
        tokens: npt.ArrayLike,
        slots: Slots,
        *,
        extra_key: str | None = None,
        cache_salt: str | None = None,
        priority: int = 0,
    ) -> int:
        """Hand over computed pages (one slot per whole page); how many leading ones L1 had already."""
        key = self.tree.key(tokens, extra_key, cache_salt)  # type: ignore[arg-type]
        return self._insertion.insert(key, slots, priority)

    def evict(self, pages: int) -> int:
        """Free pages of L1; how many could be."""
        return self._evictor.evict_device(pages)

    def evict_host(self, pages: int) -> int:
        """Free pages of L2; how many could be."""
        return self._evictor.evict_host(pages)

    # parts

    def _expect(self, request: Request, state: RequestState, *, failed: bool = False) -> None:
        self._open()
        if request.state is not state or id(request) not in self._requests:
            raise MisuseError(f"{request!r} should be {state.value}")
        if request.load_failed and not failed:
            raise MisuseError(f"{request!r} depends on a load that failed: abandon it")

    def _computed_pages(self, request: Request, tokens: int) -> int:
        held = len(request.slots) * self.page_size
        if not 0 <= tokens <= min(len(request), held):
            raise MisuseError(
                f"{request!r}: {tokens} tokens computed, but it has {len(request)} and pages for {held}"
            )
        return tokens // self.page_size

    def _let_go(self, request: Request) -> None:
        """Take everything from a request that it holds."""
        if request.prefetch is not None:
            self._prefetch.stop(request.prefetch, Reason.ABORTED, keep=False)
        request.let_go(self.tree)
        if request.state is RequestState.ADMITTED:
            self._insertion.release(request)

    def _end(self, request: Request, state: RequestState) -> None:
        request.state = state
        request.account.close(Reason.ABORTED)
        del self._requests[id(request)]
        if self._load.has_failed:
            self._load.reap()
