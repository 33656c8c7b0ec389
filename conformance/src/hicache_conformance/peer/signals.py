"""Classes that replace the process's signal handlers: what they replaced is put back, and threads can open them."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def handlers_restored() -> Iterator[None]:
    """Put back whatever handlers of SIGINT, SIGTERM and SIGQUIT were replaced meanwhile. On the main thread only."""
    watched = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT)
    before = [signal.getsignal(number) for number in watched]
    try:
        yield
    finally:
        for number, handler in zip(watched, before, strict=True):
            if signal.getsignal(number) != handler:
                signal.signal(number, handler)


@contextmanager
def handlers_left_out_in_threads() -> Iterator[None]:
    """`signal.signal` does nothing in a thread that is not the main one, where Python's raises ValueError.

    So a class that sets handlers when it is constructed can be opened in the suite's own threads.
    """
    replaced: Callable[..., Any] = signal.signal

    def lenient(number: int, handler: Any) -> Any:
        if threading.current_thread() is threading.main_thread():
            return replaced(number, handler)
        return signal.getsignal(number)

    signal.signal = lenient  # type: ignore[assignment]
    try:
        yield
    finally:
        signal.signal = replaced
