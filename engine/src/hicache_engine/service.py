"""The engine on a thread of its own, with a door for asyncio."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable
from typing import Any

from .engine import Engine
from .errors import RequestAborted
from .job import Completion, Delta, Job
from .sampling import SamplingParams
from .tokenizer import TokenIds

IDLE_SECONDS = 0.5


class EngineService:
    """Runs an engine's passes on one thread and streams its answers to coroutines.

    An error that the engine's thread does not survive ends every open stream with it, and `failure` keeps it.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.failure: BaseException | None = None
        self._inbox: deque[Callable[[], None]] = deque()
        self._open: set[_Stream] = set()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="hicache-engine", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, timeout: float = 60.0) -> None:
        """End every request and shut the engine down. Raises RuntimeError where its thread does not come back."""
        self._stopping = True
        self.engine.cache.wake()
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise RuntimeError(f"the engine's thread has not ended within {timeout} s")

    @property
    def alive(self) -> bool:
        """Whether requests are served."""
        return self._thread.is_alive() and self.failure is None

    async def stream(
        self, prompt: TokenIds, params: SamplingParams, **options: Any
    ) -> AsyncGenerator[Delta | Completion, None]:
        """The tokens of one request as they come, a Completion last. Leaving early aborts it.

        options: as `Engine.submit`. Raises RequestError where it can never run, RequestAborted where the engine
        fails.
        """
        stream = _Stream(asyncio.get_running_loop())
        self._post(lambda: self._submit(stream, prompt, params, options))
        try:
            while True:
                event = await stream.queue.get()
                if isinstance(event, BaseException):
                    raise event
                yield event
                if isinstance(event, Completion):
                    return
        finally:
            if self.alive:
                self._post(lambda: self._close(stream))

    async def run(self, function: Callable[[Engine], Any]) -> Any:
        """Call a function on the engine's thread, between passes, and return what it returns."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()

        def settle(result: Any, error: BaseException | None) -> None:
            if not future.done():
                future.set_exception(error) if error else future.set_result(result)

        def call() -> None:
            try:
                result, error = function(self.engine), None
            except Exception as caught:  # noqa: BLE001 - goes to whoever awaits
                result, error = None, caught
            loop.call_soon_threadsafe(settle, result, error)

        self._post(call)
        return await future

    def _post(self, call: Callable[[], None]) -> None:
        if not self.alive:
            raise RequestAborted("the engine is not running") from self.failure
        self._inbox.append(call)
        self.engine.cache.wake()

    # On the engine's thread

    def _submit(self, stream: _Stream, prompt: TokenIds, params: SamplingParams, options: dict[str, Any]) -> None:
        self._open.add(stream)
        try:
            stream.job = self.engine.submit(prompt, params, listener=stream.give, **options)
        except Exception as error:  # noqa: BLE001 - goes to whoever awaits
            stream.give(error)

    def _close(self, stream: _Stream) -> None:
        self._open.discard(stream)
        if stream.job is not None:
            self.engine.scheduler.abort(stream.job)

    def _run(self) -> None:
        try:
            while not self._stopping:
                while self._inbox:
                    self._inbox.popleft()()
                if not self.engine.step() and not self._inbox:
                    self.engine.wait(IDLE_SECONDS)
            self.engine.close()
        except BaseException as error:  # noqa: BLE001 - kept in `failure` and given to every open stream
            self.failure = error
        for stream in list(self._open):
            ended = RequestAborted("the engine has stopped")
            ended.__cause__ = self.failure
            stream.give(ended)


class _Stream:
    """Hands events of one job to one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.queue: asyncio.Queue[Delta | Completion | BaseException] = asyncio.Queue()
        self.job: Job | None = None
        self._loop = loop

    def give(self, event: Delta | Completion | BaseException) -> None:
        """Any thread. A loop that has ended meanwhile has no one left to tell."""
        try:
            self._loop.call_soon_threadsafe(self.queue.put_nowait, event)
        except RuntimeError:
            if not self._loop.is_closed():
                raise
