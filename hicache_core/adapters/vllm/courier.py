"""The thread between vLLM's scheduler and the storage session.

The scheduler holds the manager's lock while it calls the tier, so it only puts messages into a queue and takes
results out of one; keys, buffers and handles are made here. Every job comes back exactly once, whatever happens.

A load is told of when it is answered: the session reads into memory of its own and copies into the row under the
call's claim (`lent_pools`), so nothing is written there after a deadline. A store is told of when it is answered
*and* the store has let go of the rows, or `hold` seconds after its deadline. A store that still reads a row then
may publish a mixture of bytes, whose seal is wrong: a miss for whoever reads it.
"""

from __future__ import annotations

import functools
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Any

from hicache_core.adapters.vllm.identity import by_pool, page_hashes
from hicache_core.adapters.vllm.jobs import Answer, Finished, Job, Part
from hicache_core.errors import trace_of
from hicache_core.storage import Handle, StorageSession
from hicache_core.types import Outcome

QUESTION_KEYS = 512
"""Keys in one query, at most: a long prompt is spread over the readers."""
_TICK = 0.25
"""Seconds between looks at stores that are held, while there are any."""

_log = logging.getLogger(__name__)


class _Kind(Enum):
    ASK = "ask"
    STORE = "store"
    LOAD = "load"
    ANSWERED = "answered"
    RETURNED = "returned"
    ABORT = "abort"
    CLOSE = "close"


class Courier:
    """Takes questions and jobs to a session. row(chunk) gives the buffer of a primary row.

    answers, finished: queues that the scheduler empties.
    """

    def __init__(self, session: StorageSession, row: Callable[[int], memoryview], hold: float) -> None:
        self.answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self.finished: queue.SimpleQueue[Finished] = queue.SimpleQueue()
        self._session, self._row = session, row
        self._timeout, self._hold = session.settings.timeout, hold
        self._most_stores = 2 * session.settings.write_workers
        self._messages: queue.SimpleQueue[tuple[_Kind, Any]] = queue.SimpleQueue()
        self._waiting: deque[Job] = deque()
        """Stores that the session has not got yet: their deadline has not begun."""
        self._stores: dict[int, Job] = {}
        self._loads: dict[int, Job] = {}
        self._unanswered = 0
        """Stores in the session without an answer."""
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="hicache-vllm-courier", daemon=True)
        self._thread.start()

    # -- for the scheduler: none of these waits

    def ask(self, keys: list[bytes]) -> None:
        """Whether the store has these; comes back in `answers`, in one piece or more."""
        self._messages.put((_Kind.ASK, keys))

    def store(self, job: Job) -> None:
        """Write the job's rows; comes back in `finished`."""
        self._messages.put((_Kind.STORE, job))

    def load(self, job: Job) -> None:
        """Fill the job's rows; comes back in `finished`."""
        self._messages.put((_Kind.LOAD, job))

    def abort(self) -> None:
        """Let every job come back now, as failed where it is not done."""
        self._messages.put((_Kind.ABORT, None))

    def close(self, timeout: float) -> bool:
        """End the thread, all jobs told of; waits so many seconds at most. False where it did not end."""
        self._messages.put((_Kind.CLOSE, None))
        self._thread.join(timeout)
        return not self._thread.is_alive()

    # -- the thread

    def _serve(self) -> None:
        while not self._closed:
            try:
                kind, what = self._messages.get(timeout=_TICK if self._stores else None)
            except queue.Empty:
                self._release_held()
                continue
            try:
                self._handle(kind, what)
            except BaseException as error:  # noqa: BLE001 - a lost job would keep vLLM stepping for ever
                _log.error("a message %s of the vLLM tier failed:\n%s", kind.value, trace_of(error))
                self._give_back(kind, what)
            del what  # or this frame would keep the rows of a job while it waits

    def _handle(self, kind: _Kind, what: Any) -> None:
        if kind is _Kind.ASK:
            self._ask(what)
        elif kind is _Kind.LOAD:
            self._loads[what.job_id] = what
            self._begin(what)
        elif kind is _Kind.STORE:
            self._waiting.append(what)
            self._begin_stores()
        elif kind is _Kind.ANSWERED:
            self._answered(*what)
        elif kind is _Kind.RETURNED:
            self._part_event(what[0])
        else:
            self._end_all()
            self._closed = kind is _Kind.CLOSE
        if self._stores:
            self._release_held()

    def _ask(self, keys: list[bytes]) -> None:
        for pool, indices in by_pool(keys):
            for lo in range(0, len(indices), QUESTION_KEYS):
                part = [keys[i] for i in indices[lo : lo + QUESTION_KEYS]]
                handle = self._session.submit_contains(page_hashes(part), pool=pool)
                handle.add_done_callback(functools.partial(self._found, part))

    def _found(self, keys: list[bytes], handle: Handle[list[bool]]) -> None:
        """On a worker: the answer is there. A query that failed is a miss, or its keys would never be answered."""
        try:
            found = handle.result()
        except BaseException as error:  # noqa: BLE001 - a fault of the core; the scheduler recomputes
            _log.error("a query of the vLLM tier failed:\n%s", trace_of(error))
            found = [False] * len(keys)
        self.answers.put(Answer(keys, found))

    def _begin_stores(self) -> None:
        while self._waiting and self._unanswered < self._most_stores:
            job = self._waiting.popleft()
            self._stores[job.job_id] = job
            self._unanswered += 1
            self._begin(job)

    def _begin(self, job: Job) -> None:
        """Hand the job to the session, one operation for each pool."""
        job.begun = time.monotonic()
        pools = by_pool(job.keys)
        job.parts = job.unanswered = len(pools)
        for pool, indices in pools:
            try:
                self._send(job, pool, indices)
            except BaseException as error:  # noqa: BLE001 - other parts may be under way: the job ends with them
                _log.error("a job of the vLLM tier could not be begun:\n%s", trace_of(error))
                self._part_answered(job)
                self._part_ended(job)
        if not pools:
            self._end(job)

    def _send(self, job: Job, pool: str, indices: list[int]) -> None:
        part = Part(job, [job.keys[i] for i in indices], 1 if job.promotion else 2)
        pages = [[self._row(job.chunks[i])] for i in indices]
        send = self._session.submit_get if job.promotion else self._session.submit_set
        handle = send(page_hashes(part.keys), pages, pool=pool)
        job.handles.append(handle)
        handle.add_done_callback(functools.partial(self._post, _Kind.ANSWERED, part))
        if not job.promotion:
            handle.add_returned_callback(functools.partial(self._post, _Kind.RETURNED, part))

    def _post(self, kind: _Kind, part: Part, handle: Handle[list[Outcome]]) -> None:
        """On a worker."""
        self._messages.put((kind, (part, handle)))

    def _answered(self, part: Part, handle: Handle[list[Outcome]]) -> None:
        job = part.job
        try:
            if not job.ended:
                outcomes = handle.result()
                job.outcomes.update(outcomes)
                job.good += [key for key, outcome in zip(part.keys, outcomes, strict=True) if outcome]
        finally:  # an answer that is an error of the core is no success, and the part has ended all the same
            self._part_answered(job)
            self._part_event(part)
        self._begin_stores()

    def _part_event(self, part: Part) -> None:
        part.waits -= 1
        if not part.waits:
            self._part_ended(part.job)

    def _part_answered(self, job: Job) -> None:
        job.unanswered -= 1
        if not job.unanswered and not job.promotion:
            self._unanswered -= 1

    def _part_ended(self, job: Job) -> None:
        job.parts -= 1
        if not job.parts:
            self._end(job)

    def _end(self, job: Job, *, failed: bool = False) -> None:
        """Tell the scheduler of a job, once."""
        (self._loads if job.promotion else self._stores).pop(job.job_id, None)
        job.handles.clear()
        if job.ended:
            return
        job.ended = True
        good = [] if failed else job.good
        kept = set(good) if len(good) < len(job.keys) else None
        bad = [] if kept is None else [key for key in job.keys if key not in kept]
        self.finished.put(Finished(job, good, bad, time.monotonic() - job.begun if job.begun else 0.0))

    def _release_held(self) -> None:
        """End stores whose rows were not let go of in time; the oldest come first."""
        limit = time.monotonic() - self._timeout - self._hold
        held = []
        for job in self._stores.values():
            if job.begun > limit:
                break
            held.append(job)
        for job in held:
            _log.warning(
                "the store has not let go of %d rows %.0f s after their deadline; vLLM may use them again. A page "
                "that is written from them now is damaged and will be a miss",
                len(job.chunks),
                self._hold,
            )
            self._end(job, failed=True)

    def _end_all(self) -> None:
        for job in self._loads.values():
            for handle in list(job.handles):
                handle.abandon()  # nothing is written into its rows from here on
        for job in [*self._stores.values(), *self._loads.values(), *self._waiting]:
            self._end(job, failed=True)
        self._waiting.clear()

    def _give_back(self, kind: _Kind, what: Any) -> None:
        """What a message was about comes back although handling it failed."""
        if kind is _Kind.ASK:
            self.answers.put(Answer(what, [False] * len(what)))
        elif kind in (_Kind.STORE, _Kind.LOAD):
            self._end(what, failed=True)
