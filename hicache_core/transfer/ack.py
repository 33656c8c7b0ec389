"""What a submitted copy answers."""

from __future__ import annotations

import threading
from typing import Any, Literal

from hicache_core.errors import TransferError

Direction = Literal["backup", "load"]


class Ack:
    """The end of one submission, good or bad. The copy thread finishes it; any thread may look or wait.

    tag: the caller's. pages: how many it moves. producer: a load's id in the layer counter. error: None while it
    runs and where it ended well; else a TransferError whose `__cause__` is what happened, and then the destination
    pages hold nothing of use.
    """

    __slots__ = ("_finished", "direction", "error", "pages", "producer", "tag")

    def __init__(self, direction: Direction, pages: int, tag: Any = None, producer: int | None = None) -> None:
        self.direction: Direction = direction
        self.pages = pages
        self.tag = tag
        self.producer = producer
        self.error: TransferError | None = None
        self._finished = threading.Event()

    def done(self) -> bool:
        """Whether it has ended."""
        return self._finished.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Block until it has ended or `timeout` seconds are over; whether it has ended. Raises nothing: see error."""
        return self._finished.wait(timeout)

    def finish(self, error: TransferError | None = None) -> None:
        """Called once, by whoever did the copy."""
        self.error = error
        self._finished.set()

    def __repr__(self) -> str:
        state = "running" if not self.done() else f"failed: {self.error}" if self.error else "done"
        return f"<Ack {self.direction} of {self.pages} pages, tag {self.tag!r}, {state}>"
