"""Threads for a connector's blocking calls."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

T = TypeVar("T")
_CLOSE_PATIENCE_SECONDS = 5.0


class DaemonPool(Executor):
    """A fixed number of daemon threads. Unlike the library's pool it keeps no interpreter from ending while one of
    them waits for a file system that does not answer."""

    def __init__(self, threads: int) -> None:
        self._jobs: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, name=f"hicache-aibrix-{n}", daemon=True) for n in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Run `fn` on one of the threads."""
        future: Future[T] = Future()
        self._jobs.put((future, lambda: fn(*args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the threads once the queue is empty, and wait for them, but not for ever."""
        for _ in self._threads:
            self._jobs.put(None)
        until = time.monotonic() + _CLOSE_PATIENCE_SECONDS
        for thread in self._threads if wait else ():
            thread.join(max(0.0, until - time.monotonic()))

    @property
    def abandoned(self) -> int:
        """Threads that are still inside a call; to be asked after shutdown."""
        return sum(thread.is_alive() for thread in self._threads)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, call = job
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as error:  # noqa: BLE001 - handed to whoever waits
                    future.set_exception(error)
            del job, future, call  # they hold the page, and the next job may be long in coming
