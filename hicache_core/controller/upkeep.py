"""L3 comes, goes and is asked; the whole is written out, emptied, ended."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hicache_core.controller.attachment import DetachMode
from hicache_core.controller.explain import Explanation, explain
from hicache_core.controller.lifecycle import RequestLife
from hicache_core.controller.request import RequestState
from hicache_core.errors import IdentityError, MisuseError
from hicache_core.keys import chain_seed, page_hashes
from hicache_core.pools.host import HostPool
from hicache_core.tree.key import TreeKey

if TYPE_CHECKING:
    from hicache_core.namespace import Identity
    from hicache_core.plugin.select import BackendChoice
    from hicache_core.storage.session import StorageSession

CLOSE_PAUSE = 0.05
"""Seconds between attempts to unmap L2 while a call of L3 holds views of it."""


class Upkeep(RequestLife):
    """What an operator, or an engine between requests, calls."""

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
            timeout=config.storage_timeout,
            read_workers=config.storage_workers,
            write_workers=config.storage_workers,
            worker_cpus=tuple(config.storage_worker_cpus),
        )
        if options is None and isinstance(backend, str):
            options = config.hicache_storage_backend_options or None
        session = open_session(
            backend,
            identity=identity,
            options=options,
            settings=settings,
            transforms=config.hicache_storage_transforms,
            observers=config.hicache_storage_observers,
        )
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
        host pool's memory; call again once it may have), or where pages did not reach L3.
        """
        deadline = time.monotonic() + timeout
        clean = True if self._closed else self._stop(timeout, deadline)
        host = self._state.host_pool
        if self._owns_pools and host is not None:
            clean = self._close_pool(host, deadline) and clean
        return clean

    # parts

    def _stop(self, timeout: float, deadline: float) -> bool:
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
        return clean

    def _key_and_hashes(
        self, tokens: npt.ArrayLike, extra_key: str | None, cache_salt: str | None
    ) -> tuple[TreeKey, list[str]]:
        key = self.tree.key(tokens, extra_key, cache_salt)  # type: ignore[arg-type]
        ids = np.frombuffer(key.data, "<u4")
        return key, page_hashes(ids, self.page_size, prior=chain_seed(extra_key, cache_salt))

    def _close_pool(self, pool: HostPool, deadline: float) -> bool:
        """Unmap L2; waits for calls that still hold views of it, to `deadline` on time.monotonic() at most."""
        while True:
            try:
                pool.close()
            except BufferError:
                gc.collect()  # ended calls may hold views in reference cycles
            else:
                return True
            if time.monotonic() >= deadline:
                with contextlib.suppress(BufferError):
                    pool.close()
                    return True
                return False
            self._state.mailbox.run_calls()
            self._state.mailbox.wait(CLOSE_PAUSE)
