"""Calls on their way to a store, and what a caller holds of them.

A `Call` is the unit that one worker runs. Its state changes only under its own mutex, so that exactly one of
worker and waiter wins:

    QUEUED ──claim──► RUNNING ──finish──► RETURNED
      │ cancel           │ give_up
      ▼                  ▼
    CANCELLED         ABANDONED ──(hook returns)──► RETURNED_LATE

While a worker copies into memory that cannot be quarantined the call is COMMITTING: a waiter that comes then
waits for the copy to end. A `Handle` joins the calls of one operation.
"""

from __future__ import annotations

import _thread
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from hicache_core.clock import Clock
from hicache_core.types import Outcome

if TYPE_CHECKING:
    from hicache_core.storage.workers import WorkerGroup

T = TypeVar("T")
_log = logging.getLogger(__name__)


class Latch:
    """An event that is set once. As `threading.Event`, at a third of its cost on the path of every call."""

    __slots__ = ("_lock", "_set")

    def __init__(self) -> None:
        self._lock = _thread.allocate_lock()
        self._lock.acquire()
        self._set = False

    def set(self) -> None:
        """Let everyone go. Called once."""
        self._set = True
        self._lock.release()

    def is_set(self) -> bool:
        """Whether it has been set."""
        return self._set

    def wait(self, timeout: float | None = None) -> bool:
        """Wait at most so many seconds (None: no bound); True where it was set."""
        if self._set:
            return True
        bound = -1.0 if timeout is None else min(max(0.0, timeout), threading.TIMEOUT_MAX)
        if self._lock.acquire(timeout=bound):
            self._lock.release()
        return self._set


class CallState(Enum):
    """Where a call is; see the module."""

    QUEUED = "queued"
    RUNNING = "running"
    COMMITTING = "committing"
    RETURNED = "returned"
    CANCELLED = "cancelled"
    ABANDONED = "abandoned"
    RETURNED_LATE = "returned_late"


_INSIDE = frozenset({CallState.RUNNING, CallState.COMMITTING, CallState.ABANDONED})


class Call:
    """One piece of work of one worker.

    work(call) runs on the worker and returns the answer. given_up(outcome, partial) makes the answer of a call
    that was cancelled (CANCELLED) or abandoned (TIMEOUT) from what `publish` had kept by then. patient: never
    abandoned, since the store writes straight into memory that cannot be quarantined.
    """

    __slots__ = (
        "_done",
        "_group",
        "_mutex",
        "_overdue",
        "_settle",
        "given_up",
        "partial",
        "patient",
        "state",
        "work",
    )

    def __init__(
        self,
        work: Callable[[Call], Any],
        given_up: Callable[[Outcome, Any], Any],
        *,
        patient: bool = False,
    ) -> None:
        self.work: Callable[[Call], Any] | None = work
        self.given_up = given_up
        self.patient = patient
        self.partial: Any = None
        self.state = CallState.QUEUED
        self._mutex = threading.Lock()
        self._overdue = False
        self._settle: Callable[[Call, Any], None] | None = None
        self._done: Callable[[], None] | None = None
        self._group: WorkerGroup | None = None

    def bind(self, settle: Callable[[Call, Any], None], done: Callable[[], None]) -> None:
        """Who learns of the answer (once), and that the call has left the store or never went there (once)."""
        self._settle, self._done = settle, done

    @property
    def abandoned(self) -> bool:
        """True from the moment at which the waiter stopped waiting; the worker then does nothing further."""
        return self.state is CallState.ABANDONED

    @property
    def inside(self) -> bool:
        """Whether its hook may be running: claimed and not returned."""
        return self.state in _INSIDE

    def claim(self, group: WorkerGroup) -> bool:
        """queued → running. False where a waiter cancelled it first."""
        with self._mutex:
            if self.state is not CallState.QUEUED:
                return False
            self.state, self._group = CallState.RUNNING, group
            return True

    def publish(self, partial: Any) -> bool:
        """Keep what is finished, for a waiter that gives up later. False where the call was abandoned."""
        with self._mutex:
            if self.state is CallState.ABANDONED:
                return False
            self.partial = partial
            return True

    @contextmanager
    def committing(self) -> Iterator[bool]:
        """Hold off waiters while the worker copies. Gives False (and holds no one off) once abandoned."""
        with self._mutex:
            won = self.state is CallState.RUNNING
            if won:
                self.state = CallState.COMMITTING
        try:
            yield won
        finally:
            if won:
                with self._mutex:
                    self.state = CallState.RUNNING

    def finish(self, answer: Any) -> bool:
        """running → returned, with its answer. False where it had been abandoned: nobody gets the answer."""
        with self._mutex:
            late = self.state is CallState.ABANDONED
            self.state = CallState.RETURNED_LATE if late else CallState.RETURNED
        self.work = None  # lets go of the memory that was lent
        if not late:
            self._tell(answer)
        elif self._group is not None:
            self._group.came_back()
        self._left()
        return not late

    def cancel(self, outcome: Outcome = Outcome.CANCELLED) -> bool:
        """queued → cancelled, with this outcome for its pages. False where a worker has claimed it."""
        with self._mutex:
            if self.state is not CallState.QUEUED:
                return False
            self.state = CallState.CANCELLED
        self.work = None
        self._tell(self.given_up(outcome, None))
        self._left()
        return True

    def give_up(self) -> bool:
        """Cancel it if queued, abandon it if running. False where it has ended, is patient, or is committing."""
        if self.cancel():
            return True
        with self._mutex:
            if self.state is not CallState.RUNNING:
                return False
            first, self._overdue = not self._overdue, True
            if not self.patient:
                self.state = CallState.ABANDONED
            partial, group = self.partial, self._group
        if self.patient:
            if first and group is not None:
                group.overdue()
            return False
        if group is not None:
            group.overran(self)
        self._tell(self.given_up(Outcome.TIMEOUT, partial))
        return True

    def _tell(self, answer: Any) -> None:
        settle, self._settle = self._settle, None  # told once; a call that is told holds its handle no longer
        if settle is not None:
            settle(self, answer)

    def _left(self) -> None:
        done, self._done = self._done, None
        if done is not None:
            done()


class Handle(Generic[T]):
    """An operation under way. Every answer comes by the deadline, whatever the store does.

    `returned` is set once no worker and no store touches the lent memory any more: until then the pages and
    slots of the operation stay quarantined, also after `result` answered TIMEOUT.
    """

    def __init__(
        self,
        calls: Sequence[Call],
        combine: Callable[[list[Any]], T],
        deadline: float | None,
        clock: Clock,
    ) -> None:
        self.calls = calls
        self._combine = combine
        self._deadline = deadline
        self._clock = clock
        self._answers: dict[int, Any] = {}
        self._value: Any = None
        self._error: BaseException | None = None
        self._mutex = threading.Lock()
        self._unsettled = self._inside = len(calls)
        self._done = Latch()
        self.returned = Latch()
        self._on_done: list[Callable[[Any], object]] = []
        self._on_returned: list[Callable[[Any], object]] = []
        for call in calls:
            call.bind(self._settle, self._left)
        if not calls:
            self._value = combine([])
            self._done.set()
            self.returned.set()

    @classmethod
    def answered(cls, value: T, clock: Clock) -> Handle[T]:
        """A handle that needs no store."""
        return cls((), lambda _: value, None, clock)

    def result(self, timeout: float | None = None) -> T:
        """The answer; waits at most to the deadline, or `timeout` seconds where that is sooner, then gives up.

        Never raises for what a store does: what is queued then is CANCELLED, what is running is TIMEOUT.
        """
        self.wait(timeout)
        return self._value  # type: ignore[no-any-return]

    def wait(self, timeout: float | None = None) -> None:
        """What `result` does before it answers."""
        left = self._left_seconds(timeout)
        try:
            if not self._done.wait(left):
                self.abandon()
        except BaseException:  # KeyboardInterrupt: nobody waits any more
            self.abandon()
            raise
        if self._error is not None:
            raise self._error

    def done(self) -> bool:
        """Whether the answer is there. A handle past its deadline gives up here."""
        if self._done.is_set():
            return True
        if self._deadline is not None and self._clock() >= self._deadline:
            self._give_up()
        return self._done.is_set()

    def cancel(self) -> bool:
        """Take back what no worker has begun; True where that was everything, so that no memory was touched."""
        return False not in [call.cancel() for call in self.calls]

    def abandon(self) -> None:
        """Stop waiting: queued parts are CANCELLED, running ones TIMEOUT. Returns once the answer is there.

        That is at once, except while a worker copies into lent memory, and for a store that writes straight
        into a pool that cannot be quarantined: then the caller waits for it (`SessionSettings.lent_pools`).
        """
        self._give_up()
        while not self._done.wait(0.05):
            self._give_up()

    def add_done_callback(self, fn: Callable[[Handle[T]], object]) -> None:
        """Call fn(handle) once the answer is there: on a worker or waiter thread, or at once. fn must not block."""
        self._add(self._on_done, self._done, fn)

    def add_returned_callback(self, fn: Callable[[Handle[T]], object]) -> None:
        """Call fn(handle) once the lent memory is free again. fn must not block."""
        self._add(self._on_returned, self.returned, fn)

    def _left_seconds(self, timeout: float | None) -> float | None:
        left = None if self._deadline is None else self._deadline - self._clock()
        if timeout is None:
            return left
        return timeout if left is None else min(left, timeout)

    def _give_up(self) -> None:
        for call in self.calls:
            call.give_up()

    def _settle(self, call: Call, answer: Any) -> None:
        with self._mutex:
            self._answers[id(call)] = answer
            self._unsettled -= 1
            if self._unsettled:
                return
        try:
            self._value = self._combine([self._answers[id(c)] for c in self.calls])
        except BaseException as error:
            self._error = error  # a fault of the core: whoever waits is told, and no one waits for ever
            raise
        finally:
            with self._mutex:
                self._done.set()
                waiting, self._on_done = self._on_done, []
            self._run(waiting)

    def _left(self) -> None:
        with self._mutex:
            self._inside -= 1
            if self._inside:
                return
            self.returned.set()
            waiting, self._on_returned = self._on_returned, []
        self._run(waiting)

    def _add(self, waiting: list[Callable[[Any], object]], latch: Latch, fn: Callable[[Any], object]) -> None:
        with self._mutex:
            if not latch.is_set():
                waiting.append(fn)
                return
        self._run([fn])

    def _run(self, callbacks: list[Callable[[Any], object]]) -> None:
        for fn in callbacks:
            try:
                fn(self)
            except BaseException:  # noqa: BLE001 - a caller's callback must not end a worker
                _log.exception("callback %r of a storage handle raised", fn)
