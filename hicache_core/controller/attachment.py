"""L3 comes and goes while the engine runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import numpy as np

from hicache_core.controller.backup import BackupPath
from hicache_core.controller.prefetch import PrefetchPath
from hicache_core.controller.reasons import Reason
from hicache_core.controller.state import State
from hicache_core.errors import ConfigError, IdentityError, MisuseError
from hicache_core.tree.key import TreeKey
from hicache_core.tree.node import StorageState

if TYPE_CHECKING:
    from hicache_core.controller.write import WritePath
    from hicache_core.namespace import Identity
    from hicache_core.pools.host import HostPool
    from hicache_core.storage.session import StorageSession

CLOSE_SECONDS = 1.0
"""What a session gets to close in any case."""
BARRIER_ASKS = 3
"""Times that a barrier sets a path going that has come to rest before L3 had it."""

DetachMode = Literal["refuse", "drain"]


def check_identity(identity: Identity, pool: HostPool) -> None:
    """Raises IdentityError where an identity says other bytes than the pool holds: its keys would promise them."""
    geometry = pool.geometry
    layers, heads = (stop - start for start, stop in (identity.layers, identity.heads))
    said = {
        "kind": (identity.kind, geometry.kind),
        "dtype": (identity.dtype, geometry.dtype),
        "page_size": (identity.page_size, geometry.page_size),
        "layers": (layers, geometry.layer_num),
        "heads": (heads, geometry.head_num),
        "head_dim": (identity.head_dim, geometry.head_dim),
        "v_head_dim": (identity.v_head_dim or identity.head_dim, geometry.value_dim),
        "layout": (identity.layout, pool.layout),
    }
    wrong = [f"{name} {told!r} (the pool: {held!r})" for name, (told, held) in said.items() if told != held]
    if wrong:
        raise IdentityError(f"the storage identity does not describe the host pool's pages: {', '.join(wrong)}")


class Attachment:
    """Attaches and detaches the session, and answers what of the tree is in it.

    pump(timeout) takes acknowledgements in, waiting for one at most that long.
    """

    def __init__(
        self,
        state: State,
        prefetch: PrefetchPath,
        backup: BackupPath,
        write: WritePath,
        pump: Callable[[float], None],
    ) -> None:
        self._state, self._prefetch, self._backup, self._write = state, prefetch, backup, write
        self._pump = pump

    def attach(self, session: StorageSession, *, push: bool = False) -> None:
        """Use `session` as L3; with `push`, bring what is in L2 to it now.

        Page hashes of nodes that are there already are computed from the root of their sequence when they are
        needed, so a key never stands for less than its whole prefix.
        """
        self.check_attachable()
        state = self._state
        assert state.host_pool is not None
        check_identity(session.identity, state.host_pool)
        session.register_host_pool(state.host_pool)
        state.session = session
        self.forget_storage()
        if push:
            self._backup.push_all()

    def check_attachable(self) -> None:
        """Raises MisuseError where an L3 is attached, ConfigError where there is no L2."""
        state = self._state
        if state.session is not None:
            raise MisuseError(f"storage {state.session.backend_name!r} is attached: detach it first")
        if state.host_pool is None:
            raise ConfigError(
                "L3 needs a host pool (L2), through which pages go to storage and come back; it is made at start, "
                "where enable_hierarchical_cache is on"
            )

    def detach(self, mode: DetachMode, timeout: float) -> bool:
        """Stop using L3 and close its session. Whether everything reached it and the session closed clean.

        refuse: MisuseError while lookups, reads or writes are under way or wait. drain: wait for them, at most
        `timeout` seconds; what is left then is given up.
        """
        state = self._state
        session = state.session
        if session is None:
            raise MisuseError("no storage is attached")
        if mode == "refuse" and not self.idle:
            raise MisuseError(f"storage {session.backend_name!r} is busy: {self.describe_load()}; drain it, or wait")
        deadline = time.monotonic() + timeout
        while mode == "drain" and not self.idle and not state.expired(deadline):
            self._pump(max(0.0, deadline - time.monotonic()))
        complete = self.idle
        for operation in list(self._prefetch.running.values()):
            self._prefetch.stop(operation, Reason.NO_STORAGE)
        self._backup.forget_all()
        state.session = None
        self.forget_storage()
        report = session.close(timeout=max(CLOSE_SECONDS, deadline - time.monotonic()))
        return complete and report.clean

    @property
    def idle(self) -> bool:
        """Nothing goes to or comes from L3."""
        return not self._prefetch.running and self._backup.idle and not self._write.busy

    def describe_load(self) -> str:
        """What is under way, in words."""
        return (
            f"{len(self._prefetch.running)} prefetches, {len(self._backup.running)} writes, "
            f"{self._backup.dirty.pages} pages waiting for another attempt"
        )

    def forget_storage(self) -> None:
        """Nothing is known to be in L3."""
        state = self._state
        for node in state.tree.walk():
            if node.storage_state is not StorageState.QUEUED or not self._backup.running:
                node.storage_state = StorageState.NONE
        state.unstored.clear()
        state.negative.clear()

    def barrier(self, key: TreeKey, hashes: list[str], timeout: float) -> bool:
        """Wait until L3 has every page of `key`, starting what is needed for it. False after `timeout` seconds, and
        at once where it cannot come to be (no storage, not in the tree, given up)."""
        state = self._state
        if state.session is None:
            return False
        deadline = time.monotonic() + timeout
        asks = 0
        while True:
            found = state.tree.lookup(key)
            if sum(pages for _, pages in found) < len(hashes):
                return self._stored(hashes, max(0.0, deadline - time.monotonic()))
            nodes = [node for node, _ in found]
            if all(node.storage_state is StorageState.STORED for node in nodes):
                return True
            if asks == 0 or self.idle:
                if asks == BARRIER_ASKS:
                    return False
                self._ask(key)
                asks += 1
            if state.expired(deadline):
                return False
            self._pump(max(0.0, deadline - time.monotonic()))

    def _stored(self, hashes: list[str], timeout: float) -> bool:
        """Whether L3 says on every rank that it has these pages."""
        session = self._state.session
        there = session is not None and session.exists(hashes, timeout=timeout) == len(hashes)
        return bool(self._state.sync.minimum([int(there)])[0])

    def write_out(self) -> bool:
        """Start backing up every node; whether L2 has room for all."""
        tree, complete = self._state.tree, True
        for node in list(tree.walk()):
            if node.device_children or node.device is None:
                continue
            unbacked = tree.unbacked_path(node)
            tree.inc_lock(node)
            try:
                complete = (not unbacked or self._write.back_up(unbacked)) and complete
            finally:
                tree.dec_lock(node)
        if self._state.session is not None:
            self._backup.push_all()
        return complete

    @property
    def written_out(self) -> bool:
        """Whether L2 has everything, and L3, where one is attached."""
        attached = self._state.session is not None
        return all(
            node.host is not None and (not attached or node.storage_state is StorageState.STORED)
            for node in self._state.tree.walk()
        )

    def reset_tree(self) -> None:
        """Empty L1 and L2. Pages that a call of L3 may still read are freed once all such calls have returned."""
        state = self._state
        self._backup.forget_all()
        lent = self._backup.take_lent()
        freed = state.tree.reset(force=True)
        state.device_pool.free(freed.device)
        state.negative.clear()
        if state.host_pool is None:
            return
        held = np.unique(np.concatenate([slots for _, slots in lent])) if lent else freed.host[:0]
        state.host_pool.free(np.setdiff1d(freed.host, held))
        if lent:
            state.free_when_all_returned([handle for handle, _ in lent], held)

    def _ask(self, key: TreeKey) -> None:
        """Start what brings this path to L3."""
        tree = self._state.tree
        end = tree.match_prefix(key, touch=False).best_match_node
        unbacked = [node for node in tree.unbacked_path(end) if node.device is not None]
        if unbacked:
            last = unbacked[-1]
            tree.inc_lock(last)
            try:
                self._write.back_up(unbacked)
            finally:
                tree.dec_lock(last)
        else:
            self._backup.offer(end)
