"""The threads that call a store: daemons of our own, a few per direction, replaced when a store holds them.

`concurrent.futures` will not do: its threads are joined at interpreter exit, so that one stuck store would hang
the process, and its futures cannot tell a call that never ran from one that still touches lent memory.
"""

from __future__ import annotations

import atexit
import heapq
import itertools
import logging
import os
import queue
import threading
import weakref
from collections.abc import Sequence
from enum import Enum
from time import monotonic as wall
from typing import Any

from hicache_core.clock import Clock
from hicache_core.errors import trace_of
from hicache_core.storage.breaker import Breaker
from hicache_core.storage.handles import Call, Handle
from hicache_core.storage.ledger import StorageLedger
from hicache_core.storage.placing import stay_on
from hicache_core.types import Outcome

REPLACEMENTS = 2
"""Workers of one direction that may be held by a store at once and yet have a substitute."""
_LONGEST_SLEEP = 3600.0
_LOOK_AGAIN = 0.1
_REMEMBERED = 1024
"""Deadlines that may be kept without a look whether somebody still wants them."""

_EXIT_PATIENCE = 3.0
"""Seconds that an interpreter which ends waits for calls that are inside a store."""

_log = logging.getLogger(__name__)


class Direction(str, Enum):
    """What a call does to the store; each has workers and a breaker of its own."""

    READ = "read"
    WRITE = "write"
    ADMIN = "admin"

    def __str__(self) -> str:
        return self.value


class _Worker:
    """cpu: the one that it stays on; None: wherever the system puts it."""

    __slots__ = ("call", "cpu", "replaced", "thread")

    def __init__(self, cpu: int | None) -> None:
        self.cpu = cpu
        self.thread: threading.Thread | None = None
        self.call: Call | None = None
        self.replaced = False


class WorkerGroup:
    """The workers of one direction and their queue. Threads start with the first call."""

    def __init__(
        self,
        direction: Direction,
        count: int,
        breaker: Breaker,
        ledger: StorageLedger,
        name: str,
        cpus: Sequence[int] = (),
    ) -> None:
        """cpus: one for each worker in turn; empty: wherever the system puts them."""
        self.direction, self.count, self.breaker = direction, count, breaker
        self._ledger, self._name, self._cpus = ledger, name, cpus
        self._queue: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._mutex = threading.Lock()
        self._workers: set[_Worker] = set()
        self._held = 0
        self._numbers = itertools.count()
        self._closed = False
        self._here = 0
        """Calls that run on their callers' threads; changed under the mutex."""
        self._none_here = threading.Condition(self._mutex)
        self._pid = os.getpid()
        _groups.add(self)

    def run_here(self, call: Call) -> bool:
        """Run a call on this thread, for a store that never waits: a hand-over would cost more than the call.

        False where so many threads are in the store that the session's own memory (seals, staging) is in use: they
        and the workers are `count` + REPLACEMENTS at most, so this one has to queue.
        """
        with self._mutex:
            if not self._closed:
                if self._here + self._held >= REPLACEMENTS:
                    return False
                self._here += 1
        if self._closed:
            call.cancel()
            return True
        try:
            if call.claim(self):
                error = self._perform(call)
                if error is not None:
                    raise error  # KeyboardInterrupt is this thread's own
        finally:
            with self._mutex:
                self._here -= 1
                if not self._here:
                    self._none_here.notify_all()
        return True

    def submit(self, call: Call) -> None:
        """Queue a call. A group that is closed cancels it."""
        if not self._workers:
            with self._mutex:
                if not self._workers and not self._closed:
                    self._start_all()
                if not self._workers and not self._closed:
                    call.cancel(Outcome.UNAVAILABLE)
                    return
        self._queue.put(call)
        if self._closed:
            call.cancel()

    def overran(self, call: Call) -> None:
        """A waiter abandoned a running call: tell the breaker and put another worker in the place of its own."""
        self._ledger.event("abandoned")
        self.breaker.abandoned()
        with self._mutex:
            worker = next((w for w in self._workers if w.call is call), None)
            if worker is None or worker.replaced or self._held + self._here >= REPLACEMENTS or self._closed:
                return
            try:
                self._start(worker.cpu)
            except RuntimeError:  # no further thread to be had: the others go on
                _log.warning("no thread could be started in the place of a held %s worker", self.direction)
                return
            worker.replaced = True
            self._held += 1
        self._ledger.event("workers_replaced")

    def came_back(self) -> None:
        """An abandoned call returned."""
        self._ledger.event("returned_late")
        self.breaker.returned_late()

    def overdue(self) -> None:
        """A call that may not be abandoned passed its deadline: spare later callers the wait."""
        self._ledger.event("overdue")
        self.breaker.force_open(1.0, "a zero-copy call into a lent pool passed its deadline")

    @property
    def running(self) -> int:
        """Calls inside the store now, abandoned ones included."""
        calls = [worker.call for worker in list(self._workers)]
        return self._here + sum(call is not None and call.inside for call in calls)

    @property
    def threads(self) -> list[threading.Thread]:
        """The threads that are alive."""
        return [w.thread for w in list(self._workers) if w.thread is not None and w.thread.is_alive()]

    def close(self) -> None:
        """Cancel what is queued and let workers end after the call that they are in. Does not wait."""
        with self._mutex:
            self._closed = True
            alive = len(self._workers)
        while True:
            try:
                call = self._queue.get_nowait()
            except queue.Empty:
                break
            if call is not None:
                call.cancel()
        for _ in range(alive):
            self._queue.put(None)

    def drain(self, deadline: float) -> bool:
        """Wait for the workers of a closed group, but for those whose call was abandoned; True where none is left."""
        here = threading.current_thread()  # a callback of a handle may close the session
        while True:
            wanted = [
                worker.thread
                for worker in list(self._workers)
                if worker.thread not in (None, here) and (worker.call is None or not worker.call.abandoned)
            ]
            left = deadline - wall()
            if not wanted or left <= 0:
                return not self._workers
            if wanted[0] is not None:
                wanted[0].join(min(left, _LOOK_AGAIN))  # its call may be abandoned meanwhile

    def join(self, deadline: float) -> bool:
        """Wait for every worker and call to end, to `deadline` on time.monotonic() at most; True where all have."""
        with self._none_here:
            ended = self._none_here.wait_for(lambda: not self._here, max(0.0, deadline - wall()))
        for thread in self.threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - wall()))
        return ended and not self.threads

    @property
    def of_this_process(self) -> bool:
        """False in a forked child, which has the group without its threads."""
        return self._pid == os.getpid()

    def give_up_running(self) -> int:
        """Abandon every running call; how many there were."""
        return sum([call.give_up() for call in [w.call for w in list(self._workers)] if call is not None])

    def _start_all(self) -> None:
        """Start the workers, or as many as there are threads to be had. Inside the mutex."""
        try:
            for number in range(self.count):
                self._start(self._cpus[number % len(self._cpus)] if self._cpus else None)
        except RuntimeError as error:
            self._ledger.exception(str(self.direction), error)
            _log.warning("%d of %d %s workers run: %s", len(self._workers), self.count, self.direction, error)

    def _start(self, cpu: int | None) -> None:
        worker = _Worker(cpu)
        worker.thread = threading.Thread(
            target=self._serve,
            args=(worker,),
            name=f"{self._name}-{self.direction}-{next(self._numbers)}",
            daemon=True,
        )
        self._workers.add(worker)
        try:
            worker.thread.start()
        except BaseException:
            self._workers.discard(worker)
            raise

    def _serve(self, worker: _Worker) -> None:
        try:
            if worker.cpu is not None:
                stay_on(worker.cpu)
            while not worker.replaced:
                call = self._queue.get()
                if call is None:
                    return
                worker.call = call
                if call.claim(self):
                    try:
                        self._perform(call)
                    except BaseException as error:  # noqa: BLE001 - the handle has it too; the worker goes on
                        _log.error("a storage call could not be ended properly:\n%s", trace_of(error))
                worker.call = None
                del call  # or this frame would keep the lent memory while it waits for the next call
        finally:
            with self._mutex:
                self._workers.discard(worker)
                if worker.replaced:
                    self._held -= 1

    def _perform(self, call: Call) -> BaseException | None:
        """Run it and tell its answer; what it raised, where that is no mere Exception, which is told too."""
        work, failure = call.work, None
        assert work is not None
        try:
            answer = work(call)
        except BaseException as error:  # noqa: BLE001 - a worker survives anything; the ledger keeps the cause
            _log.error("a storage call failed outside the store:\n%s", self._ledger.hide(trace_of(error)))
            self._ledger.exception(str(self.direction), error)
            answer = call.given_up(Outcome.UNAVAILABLE, call.partial)
            # An error kept here holds this frame, which holds the error: the lent memory would stay with them.
            failure = None if isinstance(error, Exception) else error
        del work
        call.finish(answer)
        return failure


_groups: weakref.WeakSet[WorkerGroup] = weakref.WeakSet()


def _end_with_interpreter() -> None:
    """Let calls come home that sessions left open have inside a store: a thread that comes back from a client's C++
    into an interpreter that is going down aborts the process. One that a store holds longer stays behind."""
    deadline = wall() + _EXIT_PATIENCE
    mine = [group for group in list(_groups) if group.of_this_process]
    for group in mine:
        group.close()
    for group in mine:
        group.join(deadline)


atexit.register(_end_with_interpreter)


class DeadlineKeeper:
    """Gives up on handles that nobody waits for: callers who only left a callback get their answer too."""

    def __init__(self, clock: Clock, name: str) -> None:
        self._clock, self._name = clock, name
        self._wake = threading.Condition()
        self._due: list[tuple[float, int, weakref.ref[Handle[Any]]]] = []
        self._most = _REMEMBERED
        self._numbers = itertools.count()
        self._thread: threading.Thread | None = None
        self._closed = False

    def watch(self, handle: Handle[Any], deadline: float) -> None:
        """See to it that the handle is done soon after `deadline`."""
        with self._wake:
            if self._closed:
                return
            sooner = not self._due or deadline < self._due[0][0]
            heapq.heappush(self._due, (deadline, next(self._numbers), weakref.ref(handle)))
            if len(self._due) > self._most:
                self._forget_the_gone()
            if self._thread is None:
                self._begin()
            elif sooner:
                self._wake.notify()

    def _forget_the_gone(self) -> None:
        """Drop handles that nobody holds any more: with long deadlines they would add up."""
        self._due = [entry for entry in self._due if entry[2]() is not None]
        heapq.heapify(self._due)
        self._most = max(_REMEMBERED, 2 * len(self._due))

    def _begin(self) -> None:
        thread = threading.Thread(target=self._serve, name=f"{self._name}-deadlines", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # whoever waits for a handle gives it up himself; the next watch tries again
            _log.warning("nobody keeps the deadlines of unwatched handles: %s", error)
            return
        self._thread = thread

    def close(self, deadline: float) -> None:
        """End the thread; waits for it to `deadline` on time.monotonic() at most."""
        with self._wake:
            self._closed = True
            self._due.clear()
            self._wake.notify()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(max(0.0, deadline - wall()))

    def _serve(self) -> None:
        while True:
            overdue = []
            with self._wake:
                if self._closed:
                    return
                now = self._clock()
                while self._due and self._due[0][0] <= now:
                    overdue.append(heapq.heappop(self._due)[2])
                if not overdue:
                    self._wake.wait(min(self._due[0][0] - now, _LONGEST_SLEEP) if self._due else _LONGEST_SLEEP)
            for reference in overdue:
                handle = reference()
                try:
                    if handle is not None and not handle.done():  # it is committing, or patient: look again
                        self.watch(handle, self._clock() + _LOOK_AGAIN)
                except BaseException as error:  # noqa: BLE001 - the handle has it too; the other deadlines are kept
                    _log.error("a storage handle could not be given up properly:\n%s", trace_of(error))
                handle = None
