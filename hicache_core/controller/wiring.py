"""What the façade is made of, and how the parts are connected."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec

from hicache_core.clock import Clock, monotonic
from hicache_core.config.model import HiCacheConfig
from hicache_core.controller.admission import Admission
from hicache_core.controller.attachment import Attachment
from hicache_core.controller.backup import BackupPath
from hicache_core.controller.eviction import Evictor
from hicache_core.controller.insertion import Insertion
from hicache_core.controller.ledger import TokenLedger
from hicache_core.controller.load import LoadPath
from hicache_core.controller.prefetch import PrefetchPath
from hicache_core.controller.request import Request
from hicache_core.controller.state import Counters, State
from hicache_core.controller.sync import RankSync, SingleRank
from hicache_core.controller.write import WritePath
from hicache_core.errors import ConfigError, MisuseError
from hicache_core.pools.device.base import DevicePool
from hicache_core.pools.host import HostPool
from hicache_core.transfer.engine import LayerHook, TransferEngine
from hicache_core.tree.radix import RadixTree

if TYPE_CHECKING:
    from hicache_core.storage.session import StorageSession

RANKS_PAUSE = 0.005
"""Seconds between passes of a rank that waits for what another rank may have done already."""


class Wiring:
    """The parts of one hierarchy, and the passes of the engine's thread over them."""

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
        self._insertion = Insertion(state, self._admission, self._write, self._backup)
        self._attachment = Attachment(state, self._prefetch, self._backup, self._write, self._pump)
        if config.hicache_write_policy == "write_back" and host_pool is not None:
            self._evictor.back_up = self._write.back_up_now
        self._evictor.unstored = lambda node: state.will_not_store(state.tree.hashes(node))
        self._requests: dict[int, Request] = {}
        self._closed = False
        if session is not None:
            self._attachment.attach(session)

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
        if self._state.sync.size > 1:  # another rank's end of a common operation wakes nobody here
            timeout = min(timeout, RANKS_PAUSE)
        return self._state.mailbox.wait(timeout)

    def wake(self) -> None:
        """Any thread: end a `wait_for_events`, so that the engine's thread looks at what else it has to do."""
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
            if self._state.expired(deadline):
                return False
            self.wait_for_events(max(0.0, deadline - time.monotonic()))

    # parts

    def _open(self) -> None:
        if self._closed:
            raise MisuseError("the cache has been shut down")

    def _pump(self, timeout: float) -> None:
        """One pass, and where it had nothing to do, a wait."""
        if not self.check_hicache_events():
            self.wait_for_events(timeout)

    def _mark_failed(self) -> None:
        """Tell the requests that hold pages of a failed load."""
        for request in self._requests.values():
            node = request.last_node
            if node is not None and not request.load_failed:
                request.load_failed = self._load.spoilt(self.tree.path(node)) is not None
