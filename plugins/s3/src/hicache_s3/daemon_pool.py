"""Threads for clients that block, as futures of the request loop.

Not concurrent.futures: its threads are joined when the interpreter ends, so one that hangs would hang it too.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeAlias

_Job: TypeAlias = "tuple[asyncio.AbstractEventLoop, asyncio.Future[Any], Callable[[], Any]]"


class DaemonPool:
    """At most `most` daemon threads, started as they are needed. Owned by the request loop's thread."""

    def __init__(self, most: int, name: str) -> None:
        self._most, self._name = most, name
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._waiting = 0

    async def run(self, work: Callable[[], Any]) -> Any:
        """The value of `work()`, which runs on one of the threads. Cancelling forgets it; it runs to its end."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._waiting += 1
        if self._waiting > len(self._threads) and len(self._threads) < self._most:
            thread = threading.Thread(target=self._serve, name=f"{self._name}-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._jobs.put((loop, future, work))
        try:
            return await future
        finally:
            self._waiting -= 1

    def close(self, patience: float) -> None:
        """End the threads; one that a file system holds is left behind after `patience` seconds."""
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join(patience)

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            loop, future, work = job
            if future.cancelled():
                continue
            value: Any = None
            error: BaseException | None = None
            try:
                value = work()
            except BaseException as caught:  # noqa: BLE001 - handed to whoever awaits it
                error = caught
            try:
                loop.call_soon_threadsafe(_settle, future, value, error)
            except RuntimeError:
                return  # the store was closed meanwhile
            del job, future, work, value, error


def _settle(future: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(value)
    elif isinstance(error, StopIteration):
        future.set_exception(RuntimeError(f"the client raised {error!r}"))
    else:
        future.set_exception(error)
