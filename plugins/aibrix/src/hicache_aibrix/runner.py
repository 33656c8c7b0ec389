"""The event loop on which a connector's coroutines run: a thread of its own, which never waits for I/O itself."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

from hicache_aibrix.pool import DaemonPool

T = TypeVar("T")
_WITHOUT_DEADLINE_SECONDS = 30.0
_GRACE_SECONDS = 10.0
"""More than the loop ever needs to cancel what is late."""


class Runner:
    """A loop and the threads for its blocking calls."""

    def __init__(self, threads: int) -> None:
        self.pool = DaemonPool(threads)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="hicache-aibrix-loop", daemon=True)
        self._thread.start()

    def all(self, jobs: Sequence[Callable[[], Awaitable[T]]], deadline: float | None) -> list[T | BaseException]:
        """Start every job in order and wait until `deadline` (monotonic; none: 30 s).

        One entry per job: what it returned or raised, TimeoutError for one that was not ready. Of those that are
        late, what had not begun never will; what had begun goes on in its thread, on a page that is revoked.
        """
        if not jobs:
            return []
        seconds = _WITHOUT_DEADLINE_SECONDS if deadline is None else max(0.0, deadline - time.monotonic())
        return asyncio.run_coroutine_threadsafe(_gather(jobs, seconds), self._loop).result(seconds + _GRACE_SECONDS)

    def close(self) -> int:
        """End all threads; how many were abandoned inside a call that did not return."""
        self.pool.shutdown()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_GRACE_SECONDS)
        if not self._thread.is_alive():
            self._loop.close()
        return self.pool.abandoned


async def _gather(jobs: Sequence[Callable[[], Awaitable[T]]], seconds: float) -> list[T | BaseException]:
    tasks = [asyncio.ensure_future(job()) for job in jobs]
    _, late = await asyncio.wait(tasks, timeout=seconds)
    for task in late:
        task.cancel()
    if late:
        await asyncio.wait(late)
    results: list[T | BaseException] = []
    for task in tasks:
        if task.cancelled():
            results.append(TimeoutError("not ready before the deadline"))
        else:
            error = task.exception()
            results.append(task.result() if error is None else error)
    return results


class Turns:
    """One writer of a key at a time, in the order of arrival. For coroutines of one loop."""

    def __init__(self) -> None:
        self._locks: dict[bytes, tuple[asyncio.Lock, list[None]]] = {}

    @asynccontextmanager
    async def of(self, key: bytes) -> AsyncIterator[None]:
        """Wait for the key's turn and hold it."""
        lock, users = self._locks.setdefault(key, (asyncio.Lock(), []))
        users.append(None)
        try:
            async with lock:
                yield
        finally:
            users.pop()
            if not users:
                del self._locks[key]
