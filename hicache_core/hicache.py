"""The façade that an engine holds.

The engine's thread calls everything here and owns the tree; I/O runs on threads of the session and of the transfer
engine, whose acknowledgements `check_hicache_events` takes in. A request walks:

`new_request` → `prefetch_from_storage` → `check_prefetch_progress` until True → `init_load_back` →
`ready_to_load_host_cache` → forward, each layer after `wait_layer` → `cache_unfinished_req` per chunk →
`cache_finished_req`. At any point `abort_req` ends it; `abandon` sends it back to the start.

All slots are page slots. Nothing here raises for what a store does; MisuseError is for the caller's mistakes.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hicache_core.clock import Clock, monotonic
from hicache_core.config.model import HiCacheConfig
from hicache_core.controller.admission import Admission
from hicache_core.controller.attachment import Attachment, DetachMode
from hicache_core.controller.backup import BackupPath
from hicache_core.controller.eviction import Evictor
from hicache_core.controller.explain import Explanation, explain
from hicache_core.controller.insertion import Insertion
from hicache_core.controller.ledger import TokenLedger
from hicache_core.controller.load import FAILED, LoadPath
from hicache_core.controller.memory import take
from hicache_core.controller.prefetch import PrefetchPath
from hicache_core.controller.reasons import Reason
from hicache_core.controller.request import CacheReport, Request, RequestState
from hicache_core.controller.state import Counters, State
from hicache_core.controller.sync import RankSync, SingleRank
from hicache_core.controller.write import WritePath
from hicache_core.errors import ConfigError, IdentityError, MisuseError
from hicache_core.keys import chain_seed, page_hashes
from hicache_core.pools.device.base import DevicePool
from hicache_core.pools.host import HostPool, make_host_pool
from hicache_core.pools.sizing import size_host_pool
from hicache_core.transfer.engine import LayerHook, TransferEngine
from hicache_core.tree.key import TreeKey
from hicache_core.tree.radix import RadixTree
from hicache_core.tree.results import MatchResult
from hicache_core.types import Slots

if TYPE_CHECKING:
    from hicache_core.namespace import Identity
    from hicache_core.plugin.select import BackendChoice
    from hicache_core.storage.session import StorageSession

__all__ = ["CacheReport", "HiCache", "Request", "RequestState"]


class HiCache:
    """A hierarchy of L1, L2 and, while one is attached, L3.

    device_pool: L1. host_pool: L2, or None for L1 alone. session: L3, used from the start; from then on the cache
    closes it. sync: rank agreement, one rank where None. clock: seconds, for deadlines and pauses. transfer_hook:
    called by the copy threads before each copy (tests, faults). owns_pools: close the host pool in `shutdown`.
    """

    def __init__(
        self,
        device_pool: DevicePool,
        host_pool: HostPool | None = None,
        *,
        config: HiCacheConfig,
        session: StorageSession | None = None,
        sync: RankSync | None = None,
        clock: Clock = monotonic,
        transfer_hook: LayerHook | None = None,
        owns_pools: bool = False,
    ) -> None:
        if device_pool.page_size != config.page_size:
            raise ConfigError(
                f"page_size is {config.page_size} in the config, {device_pool.page_size} in the device pool"
            )
        self.config, self._owns_pools = config, owns_pools
        sync = sync or SingleRank()
        self._state = state = State(config, device_pool, host_pool, None, sync, clock)
        if host_pool is not None:
            state.transfer = TransferEngine(
                host_pool,
                device_pool,
                io_backend=config.hicache_io_backend,
                hook=transfer_hook,
                on_done=lambda ack: state.mailbox.post(ack.tag),
            )
        self._evictor = Evictor(state)
        self._backup = BackupPath(state)
        self._write = WritePath(state, self._evictor, self._backup.offer)
        self._load = LoadPath(state)
        self._prefetch = PrefetchPath(state, self._evictor)
        self._admission = Admission(state, self._evictor, self._load)
        self._insertion = Insertion(state, self._admission, self._write)
        self._attachment = Attachment(state, self._prefetch, self._backup, self._write, self._pump)
        if config.hicache_write_policy == "write_back" and host_pool is not None:
            self._evictor.back_up = self._write.back_up_now
        self._evictor.unstored = lambda node: state.will_not_store(state.tree.hashes(node))
        self._requests: dict[int, Request] = {}
        self._closed = False
        if session is not None:
            self._attachment.attach(session)

    @classmethod
    def build(
        cls,
        config: HiCacheConfig,
        *,
        device_pool: DevicePool,
        identity: Identity | None = None,
        sync: RankSync | None = None,
        clock: Clock = monotonic,
        host_pages: int | None = None,
    ) -> HiCache:
        """The hierarchy that a config describes: host pool sized and made, storage opened.

        identity: names what the pages' bytes depend on; needed with a storage backend. host_pages: size of L2 in
        pages instead of hicache_ratio and hicache_size. Raises ConfigError, CapacityError, OpenError, PluginError
        before (or after giving back) anything was taken.
        """
        if not config.enable_hierarchical_cache:
            if config.hicache_storage_backend:
                raise ConfigError("hicache_storage_backend needs enable_hierarchical_cache: L3 works through L2")
            return cls(device_pool, None, config=config, sync=sync, clock=clock)
        geometry = device_pool.geometry
        if host_pages is None:
            ratio, size_gb = config.hicache_ratio, config.hicache_size
            host_pages = size_host_pool(geometry, device_pool.num_pages, ratio=ratio, size_gb=size_gb).num_pages
        host_pool = make_host_pool(geometry, config.hicache_mem_layout, host_pages)
        try:
            cache = cls(device_pool, host_pool, config=config, sync=sync, clock=clock, owns_pools=True)
        except BaseException:
            host_pool.close()
            raise
        if config.hicache_storage_backend is None:
            return cache
        try:
            cache.attach_storage_backend(config.hicache_storage_backend, identity=identity)
        except BaseException:
            cache.shutdown(0.0)
            raise
        return cache

    def __enter__(self) -> HiCache:
        return self

    def __exit__(self, *exc: object) -> None:
        self.shutdown()

    # what there is

    @property
    def tree(self) -> RadixTree:
        """Where pages are. To look at; the engine changes it through this class only."""
        return self._state.tree

    @property
    def device_pool(self) -> DevicePool:
        """L1."""
        return self._state.device_pool

    @property
    def host_pool(self) -> HostPool | None:
        """L2."""
        return self._state.host_pool

    @property
    def session(self) -> StorageSession | None:
        """L3, while one is attached."""
        return self._state.session

    @property
    def ledger(self) -> TokenLedger:
        """The books of all requests."""
        return self._state.ledger

    @property
    def counters(self) -> Counters:
        """Pages moved, evicted, retried, given up."""
        return self._state.counters

    @property
    def page_size(self) -> int:
        """Tokens per page."""
        return self._state.page_size

    @property
    def idle(self) -> bool:
        """No copy, lookup, read or write is under way or waits."""
        return self._attachment.idle and not self._load.busy

    def status(self) -> dict[str, Any]:
        """Numbers for people and metrics."""
        import msgspec

        state = self._state
        host = state.host_pool
        return {
            "device_pages": {"capacity": state.device_pool.capacity, "available": state.device_pool.available},
            "host_pages": None if host is None else {"capacity": host.capacity, "available": host.available},
            "tree": {
                "nodes": state.tree.node_count,
                "device": state.tree.device_pages,
                "host": state.tree.host_pages,
            },
            "counters": msgspec.to_builtins(state.counters),
            "declined": dict(state.declined),
            "requests": len(self._requests),
            "prefetches": len(self._prefetch.running),
            "dirty_pages": self._backup.dirty.pages,
            "quarantined_pages": state.lent_host_pages,
            "storage": None if state.session is None else state.session.backend_name,
            "ledger": state.ledger.as_dict(),
        }

    # a request's life

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

    # events

    def check_hicache_events(self) -> int:
        """Each scheduling pass: take acknowledgements in and start what follows from them; how many. Never blocks."""
        state = self._state
        if state.transfer is not None:
            state.transfer.poll()
        settled = state.mailbox.settle()
        if self._load.has_failed:
            self._mark_failed()
        self._backup.tick()
        return settled

    def wait_for_events(self, timeout: float) -> bool:
        """Park until there may be something for `check_hicache_events`, at most `timeout` seconds."""
        due = self._backup.dirty.next_due
        if due is not None:
            timeout = min(timeout, max(0.0, due - self._state.clock()))
        return self._state.mailbox.wait(timeout)

    def wake(self) -> None:
        """Any thread: end a `wait_for_events`, so that the engine's thread looks at its own inbox."""
        self._state.mailbox.call(lambda: None)

    def drain(self, timeout: float) -> bool:
        """Wait until every copy, lookup, read and write has ended, at most `timeout` seconds; whether all have.

        Writes that L3 did not take count until they are stored or given up.
        """
        deadline = time.monotonic() + timeout
        while True:
            self._load.start()
            self.check_hicache_events()
            if self.idle:
                return True
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self.wait_for_events(left)

    # L3

    def attach_storage_backend(
        self,
        backend: StorageSession | BackendChoice | str | Mapping[str, Any],
        *,
        identity: Identity | None = None,
        options: Mapping[str, Any] | None = None,
        push: bool = False,
    ) -> None:
        """Use an L3 from now on: an open session, a choice, a name, a URL, or {"backend": …, "options": …}.

        options: of the backend, for a name (default: hicache_storage_backend_options). push: bring what is in L2 to
        it now. Raises MisuseError where one is attached, and what opening a session raises.
        """
        from hicache_core.storage.opening import open_session
        from hicache_core.storage.session import StorageSession
        from hicache_core.storage.settings import SessionSettings

        self._open()
        if isinstance(backend, StorageSession):
            self._attachment.attach(backend, push=push)
            return
        self._attachment.check_attachable()
        if identity is None:
            raise IdentityError("attaching a storage backend needs an identity: what the bytes of a page depend on")
        config = self.config
        settings = SessionSettings(
            timeout=config.storage_timeout, read_workers=config.storage_workers, write_workers=config.storage_workers
        )
        if options is None and isinstance(backend, str):
            options = config.hicache_storage_backend_options or None
        session = open_session(backend, identity=identity, options=options, settings=settings)
        try:
            self._attachment.attach(session, push=push)
        except BaseException:
            session.close()
            raise

    def detach_storage_backend(self, mode: DetachMode = "refuse", timeout: float = 30.0) -> bool:
        """Stop using L3 and close it. refuse: MisuseError while it is busy. drain: wait for what is under way, at
        most `timeout` seconds. Whether everything reached it and nothing was left behind."""
        return self._attachment.detach(mode, timeout)

    def backup_barrier(
        self,
        tokens: npt.ArrayLike,
        timeout: float,
        *,
        extra_key: str | None = None,
        cache_salt: str | None = None,
    ) -> bool:
        """Wait until every whole page of `tokens` is in L3; False after `timeout` seconds, or where it cannot be."""
        key, hashes = self._key_and_hashes(tokens, extra_key, cache_salt)
        return self._attachment.barrier(key, hashes, timeout)

    def explain(
        self,
        tokens: npt.ArrayLike,
        *,
        extra_key: str | None = None,
        cache_salt: str | None = None,
        timeout: float = 5.0,
    ) -> Explanation:
        """Page by page which tier has it, or why not. Asks L3, at most `timeout` seconds; changes nothing."""
        key, hashes = self._key_and_hashes(tokens, extra_key, cache_salt)
        return explain(self._state, key, hashes, timeout)

    def clear(self) -> int:
        """Remove this namespace from L3, and nothing else; how many pages. L1 and L2 stay.

        Raises MisuseError where none is attached, NotSupportedError where the store cannot.
        """
        session = self._state.session
        if session is None:
            raise MisuseError("no storage is attached: there is nothing to clear")
        removed = session.clear()
        self._attachment.forget_storage()
        return removed

    # the whole

    def flush(self, timeout: float) -> bool:
        """Write everything that is in L1 to L2 and L3, whatever the write policy; whether all of it is there."""
        deadline = time.monotonic() + timeout
        self.drain(timeout)
        complete = self._attachment.write_out()
        return self.drain(max(0.0, deadline - time.monotonic())) and complete and self._attachment.written_out

    def reset(self) -> None:
        """Forget L1 and L2. Waiting requests stay, without what they had fetched; L3 keeps what it has.

        Pages that a call of L3 may still touch are freed once it returns. Raises MisuseError while requests are
        admitted: their pages are in use.
        """
        admitted = [request.rid for request in self._requests.values() if request.state is RequestState.ADMITTED]
        if admitted:
            raise MisuseError(
                f"{len(admitted)} requests are admitted ({', '.join(admitted[:5])}): finish or abort them"
            )
        for request in self._requests.values():
            self._let_go(request)
        self._write.finish()
        self._load.finish()
        if self._write.busy or self._load.busy:
            raise MisuseError("copies between L1 and L2 did not end: reset again")
        self._attachment.reset_tree()
        self._load.forget_failed()

    def shutdown(self, timeout: float = 30.0) -> bool:
        """Abort every request, drain and close L3, end the copy threads. Idempotent.

        At most about `timeout` seconds. False where a call of L3 has not returned (it keeps its thread and the
        host pool's memory), or where pages did not reach L3.
        """
        if self._closed:
            return True
        deadline = time.monotonic() + timeout
        for request in list(self._requests.values()):
            self.abort_req(request)
        clean = self.drain(timeout)
        if self._state.session is not None:
            clean = self.detach_storage_backend("drain", max(0.0, deadline - time.monotonic())) and clean
        self._closed = True
        state = self._state
        if state.transfer is not None:
            clean = state.transfer.close(max(1.0, deadline - time.monotonic())) and clean
            state.transfer = None
        if self._owns_pools and state.host_pool is not None:
            clean = self._close_pool(state.host_pool) and clean
        return clean

    # parts

    def _open(self) -> None:
        if self._closed:
            raise MisuseError("the cache has been shut down")

    def _pump(self, timeout: float) -> None:
        """One pass, and where it had nothing to do, a wait."""
        if not self.check_hicache_events():
            self.wait_for_events(timeout)

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
            self._prefetch.discard(request.prefetch, Reason.ABORTED)
        request.let_go(self.tree)
        if request.state is RequestState.ADMITTED:
            self._insertion.release(request)

    def _end(self, request: Request, state: RequestState) -> None:
        request.state = state
        request.account.close(Reason.ABORTED)
        del self._requests[id(request)]
        if self._load.has_failed:
            self._load.reap()

    def _mark_failed(self) -> None:
        """Tell the requests that hold pages of a failed load."""
        for request in self._requests.values():
            node = request.last_node
            if node is not None and not request.load_failed:
                request.load_failed = self._load.spoilt(self.tree.path(node)) is not None

    def _key_and_hashes(
        self, tokens: npt.ArrayLike, extra_key: str | None, cache_salt: str | None
    ) -> tuple[TreeKey, list[str]]:
        key = self.tree.key(tokens, extra_key, cache_salt)  # type: ignore[arg-type]
        ids = np.frombuffer(key.data, "<u4")
        return key, page_hashes(ids, self.page_size, prior=chain_seed(extra_key, cache_salt))

    def _close_pool(self, pool: HostPool) -> bool:
        try:
            pool.close()
        except BufferError:
            gc.collect()  # ended calls may hold views in reference cycles
            try:
                pool.close()
            except BufferError:  # a call that has not returned holds views
                return False
        return True
