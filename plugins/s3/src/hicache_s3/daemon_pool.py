"""Threads that wait for a server.

Not concurrent.futures: its threads are joined when the interpreter ends, so a store that hangs would hang it too.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable


class DaemonPool:
    """At most `most` daemon threads, started when there is work for them. Any thread may call."""

    def __init__(self, most: int, name: str) -> None:
        self._most, self._name = most, name
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._busy = 0
        """Jobs that were given and have not ended."""
        self._closed = False

    def submit(self, job: Callable[[], None]) -> bool:
        """Run the job on one of the threads, when one is free. False after close. The job must not raise."""
        with self._lock:
            if self._closed:
                return False
            self._busy += 1
            if self._busy > len(self._threads) and len(self._threads) < self._most:
                name = f"{self._name}-{len(self._threads)}"
                self._threads.append(threading.Thread(target=self._serve, name=name, daemon=True))
                self._threads[-1].start()
            self._jobs.put(job)
        return True

    def close(self, patience: float) -> int:
        """End the threads; how many are still held by the server after `patience` seconds. Idempotent."""
        with self._lock:
            if not self._closed:
                self._closed = True
                for _ in self._threads:
                    self._jobs.put(None)
        until = time.monotonic() + patience
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        return sum(thread.is_alive() for thread in self._threads)

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            del job  # it holds a call's pages
            with self._lock:
                self._busy -= 1
