"""Requests in flight: one thread runs them all, the thread that called the hook feeds it and takes what comes back.

Only the calling thread touches lent memory: it copies a page before its request starts and after that has ended. So a
call that gives up at its deadline leaves nobody behind who could still read or write a page.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from hicache_s3.failures import TooSlow

Request: TypeAlias = Callable[[], Awaitable[Any]]
LONGEST_SECONDS = 120.0
"""A call without a deadline waits no longer for its next answer."""


@dataclass(frozen=True, slots=True)
class Landed:
    """The end of one request: its number in the call, and its value or its error."""

    number: int
    value: Any = None
    error: BaseException | None = None


class RequestLoop:
    """An event loop in a thread of its own. Any thread may call."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(_cancel_all(self._loop))
            self._loop.close()

    def fly(
        self, count: int, request: Callable[[int], Request], *, window: int, deadline: float | None
    ) -> Generator[Landed, None, None]:
        """Send `request(0)` … `request(count - 1)`, at most `window` at once, and yield each as it lands.

        `request` runs on the calling thread, when there is room for its number. Ends early at the deadline
        (time.monotonic()); what is in flight then, or when the caller leaves the iteration, is cancelled.
        """
        flight = _Flight(self._loop)
        sent = flying = 0
        try:
            while sent < count or flying:
                room = min(window - flying, count - sent)
                if room:
                    flight.launch([(number, request(number)) for number in range(sent, sent + room)])
                    sent, flying = sent + room, flying + room
                for landed in flight.landed(deadline):
                    flying -= 1
                    yield landed
        except TooSlow:
            return
        finally:
            if flying:
                flight.cancel()

    def one(self, request: Request, *, deadline: float | None) -> Any:
        """Send one request and give its value. Raises its error, or TooSlow."""
        for landed in self.fly(1, lambda _: request, window=1, deadline=deadline):
            if landed.error is not None:
                raise landed.error
            return landed.value
        raise TooSlow("no answer before the deadline")

    def close(self, patience: float) -> None:
        """Cancel what is in flight and end the thread. Idempotent."""
        if self._thread.is_alive():
            try:
                self._loop.call_soon_threadsafe(self._loop.stop)
            except RuntimeError:
                pass  # the loop has just closed by itself: somebody else called close
            self._thread.join(patience)


class _Flight:
    """The requests of one call."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queue: queue.SimpleQueue[Landed] = queue.SimpleQueue()
        self._tasks: set[asyncio.Task[None]] = set()
        """Touched by the loop's thread only."""

    def launch(self, requests: Sequence[tuple[int, Request]]) -> None:
        self._loop.call_soon_threadsafe(self._start, requests)

    def cancel(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._cancel)
        except RuntimeError:
            pass  # closed meanwhile, and with it all that was in flight

    def landed(self, deadline: float | None) -> Iterator[Landed]:
        """Wait for the next that lands; yield it and all that have landed by then. Raises TooSlow."""
        wait = LONGEST_SECONDS if deadline is None else max(0.0, deadline - time.monotonic())
        try:
            landed = self._queue.get(timeout=wait)
        except queue.Empty:
            raise TooSlow("no answer before the deadline") from None
        while True:
            yield landed
            try:
                landed = self._queue.get_nowait()
            except queue.Empty:
                return

    def _start(self, requests: Sequence[tuple[int, Request]]) -> None:
        for number, request in requests:
            task = self._loop.create_task(self._run(number, request))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _cancel(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()

    async def _run(self, number: int, request: Request) -> None:
        try:
            landed = Landed(number, await request())
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - handed to the caller's thread; a panic in Rust is no Exception
            landed = Landed(number, error=error)
        self._queue.put(landed)


async def _cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    tasks = [task for task in asyncio.all_tasks(loop) if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
