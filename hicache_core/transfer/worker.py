"""A thread that runs copies one after another."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

Job = Callable[[bool], None]
"""A copy: called with True to do it, with False when the thread closes before its turn has come."""


class CopyThread:
    """One daemon thread and its queue. A job keeps its own failures; one that lets any escape ends nothing here."""

    def __init__(self, name: str, on_escape: Callable[[BaseException], None]) -> None:
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._on_escape = on_escape
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Queue a job."""
        self._jobs.put(job)

    def close(self) -> None:
        """Let the running job end and tell the queued ones that they will not run. Returns at once; see join."""
        self._closing.set()
        self._jobs.put(None)

    def join(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds for the thread; whether it has ended."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job(not self._closing.is_set())
            except BaseException as error:  # noqa: BLE001 - the thread must outlive a job; the engine keeps the cause
                self._on_escape(error)
            del job  # an idle thread must not keep pages and pools alive
