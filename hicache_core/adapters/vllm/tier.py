"""The secondary tier itself: vLLM's calls, all of them under its manager's lock, none of which waits.

vLLM creates it in the scheduler process of each engine. Every method but `drain_jobs` and `shutdown` only touches
dictionaries and queues; see `courier` for who does the work.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Collection, Iterable
from typing import Any

from hicache_core.adapters.door_options import parse_door_options
from hicache_core.adapters.untried import warn_of_untried_version
from hicache_core.adapters.vllm import engine
from hicache_core.adapters.vllm.courier import Courier
from hicache_core.adapters.vllm.identity import facts_of, identity_of
from hicache_core.adapters.vllm.jobs import Finished, Job
from hicache_core.adapters.vllm.metrics import Counts, definitions
from hicache_core.adapters.vllm.options import TierOptions
from hicache_core.adapters.vllm.verdicts import Verdicts
from hicache_core.storage import open_session

_SLACK = 5.0
"""Seconds beyond all deadlines within which the courier must have told of every job."""


class HiCacheTier(engine.SecondaryTierManager):  # type: ignore[misc]
    """A store of hicache as a tier below vLLM's CPU tier.

    config: see `TierOptions`. Raises ConfigError and its kinds, PluginError or OpenError, each with what to change.
    """

    medium = engine.STORAGE

    def __init__(
        self,
        offloading_spec: Any,
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: Any = None,
        **config: Any,
    ) -> None:
        super().__init__(offloading_spec, primary_kv_view, tier_type, *engine.base_arguments(backpressure_detector))
        warn_of_untried_version("vllm", engine.version())  # a source on the path is another than the distribution
        engine.warn_of_random_hashes()
        where = f'tier "{tier_type}" in secondary_tiers'
        options = parse_door_options(TierOptions, config, where)
        assert primary_kv_view.strides is not None
        self._stride: int = primary_kv_view.strides[0]
        facts = facts_of(offloading_spec, self._stride, engine.version())
        identity = identity_of(facts, options, where)
        self.locality = engine.locality_of(options.locality)
        self._events: list[Any] | None = None
        if options.enable_kv_events and engine.events_enabled(offloading_spec):
            self._events = []
        # A row of a two-dimensional memoryview cannot be taken as a view; of its flat form it can.
        self._flat: memoryview | None = primary_kv_view.cast("B")
        try:
            self.session = open_session(
                options.choice(where),
                identity=identity,
                settings=options.settings(where),
                transforms=options.transforms,
                observers=options.observers,
            )
        except BaseException:
            self._flat.release()  # or vLLM could not unmap its memory while the error is told
            raise
        self._courier = Courier(self.session, self._row, options.hold)
        self._drain_within = options.timeout + options.hold + _SLACK
        self._verdicts = Verdicts()
        self._counts = Counts(self.session.backend_name)
        self._open: dict[int, Job] = {}
        self._early: list[Any] = []
        """Results taken in by `drain_jobs`, for the next `get_finished_jobs`."""
        self._closed = False

    # -- lookups

    def lookup(self, key: bytes, req_context: Any) -> Any:
        """RETRY until the store has answered, then HIT or MISS."""
        self._take_answers()
        found = False if self._closed else self._verdicts.of(key, req_context.req_id)
        if found is None:
            return engine.RETRY
        return engine.HIT if found else engine.MISS

    def on_new_request(self, req_context: Any) -> Any:
        """No wishes of our own: chunks come as they are computed."""
        return engine.RequestOffloadingContext()

    def on_request_finished(self, req_context: Any) -> None:
        """What was known for this request only is forgotten."""
        self._verdicts.request_ended(req_context.req_id)

    def on_schedule_end(self, context: Any = None) -> None:
        """The step's lookups go to the store as one question."""
        self._take_answers()
        questions = self._verdicts.take_questions()
        if questions:
            self._courier.ask(questions)

    def has_pending_work(self) -> bool:
        """vLLM goes on stepping while a question is open, or the answer would not be seen; jobs it counts itself."""
        return not self._closed and self._verdicts.waiting

    def _take_answers(self) -> None:
        answers = self._courier.answers
        while not answers.empty():
            answer = answers.get_nowait()
            hits = sum(answer.found)
            self._verdicts.answer(answer.keys, answer.found)
            self._counts.lookups("hit", hits)
            self._counts.lookups("miss", len(answer.found) - hits)

    # -- jobs

    def submit_store(self, job_metadata: Any) -> None:
        """Rows of the primary tier into the store."""
        self._submit(job_metadata, promotion=False)

    def submit_load(self, job_metadata: Any) -> None:
        """From the store into rows of the primary tier."""
        self._submit(job_metadata, promotion=True)

    def _submit(self, told: Any, *, promotion: bool) -> None:
        job = Job(told.job_id, list(told.keys), engine.chunks_of(told), promotion)
        self._open[job.job_id] = job
        if self._closed:
            self._courier.finished.put(Finished(job, [], job.keys, 0.0))
        elif promotion:
            self._courier.load(job)
        else:
            self._courier.store(job)

    def get_finished_jobs(self) -> Iterable[Any]:
        """Every job that ended since the last call, each of them once."""
        results, self._early = self._early, []
        finished = self._courier.finished
        while not finished.empty():
            results += self._take_in(finished.get_nowait())
        return results

    def _take_in(self, finished: Finished) -> list[Any]:
        """Learn from a job that ended; its result, unless it was reported already."""
        job, good, bad = finished.job, finished.good, finished.bad
        if self._open.pop(job.job_id, None) is None:
            return []
        operation = "load" if job.promotion else "store"
        for outcome, count in job.outcomes.items():
            self._counts.pages(operation, outcome.value, count)
        if job.promotion:
            self._verdicts.failed(bad)
        else:
            self._verdicts.stored(good)
            if self._events is not None and good:
                self._events.append(engine.stored_event(good, self.locality))
        partly = good if job.promotion and bad and good else None
        return [engine.job_result(job.job_id, not bad, partly, finished.seconds, len(good) * self._stride)]

    def drain_jobs(self) -> None:
        """Wait until every job has ended; what has not by its deadline and `hold` is reported as failed."""
        if self._open and not self._collect(self._drain_within):
            self._courier.abort()
            self._collect(_SLACK)
        for job in list(self._open.values()):  # the courier's thread is gone: no job may be lost with it
            self._early += self._take_in(Finished(job, [], job.keys, 0.0))

    def _collect(self, seconds: float) -> bool:
        """Take in jobs until none is open; False where that took too long."""
        deadline = time.monotonic() + seconds
        while self._open:
            try:
                finished = self._courier.finished.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                return False
            self._early += self._take_in(finished)
        return True

    def touch(self, keys: Collection[bytes], req_context: Any) -> None:
        """A store orders its pages by what is read from it."""

    # -- what vLLM publishes

    def take_events(self) -> Iterable[Any]:
        """Blocks stored since the last call."""
        if not self._events:
            return ()
        events, self._events = self._events, []
        return events

    @classmethod
    def build_metric_definitions(cls, extra_config: dict[str, Any]) -> dict[str, Any]:
        """See `metrics`."""
        return definitions()

    def get_stats(self) -> Any:
        """Counters since the last call, None where nothing happened."""
        breakers = self.session.breakers
        return self._counts.take({name: breakers[name].blocked for name in ("read", "write")})

    @classmethod
    def config_info_keys(cls, tier_config: dict[str, Any]) -> tuple[str, ...]:
        """Labels of vLLM's info metric."""
        return ("hicache_backend", "hicache_namespace")

    def config_info(self) -> dict[str, str]:
        """Which store, and the first part of all its keys."""
        return {"hicache_backend": self.session.backend_name, "hicache_namespace": self.session.namespace}

    def shutdown(self) -> None:
        """End threads, close the store, let go of vLLM's memory. Idempotent; waits about ten seconds at most."""
        if self._closed:
            return
        self._closed = True
        self._courier.close(_SLACK)
        self.session.close(_SLACK)
        if self._flat is not None:
            self._flat.release()
            self._flat = None

    def _row(self, chunk: int) -> memoryview:
        """The bytes of a primary row, not copied."""
        assert self._flat is not None
        return self._flat[chunk * self._stride : (chunk + 1) * self._stride]

    def __repr__(self) -> str:
        return f"<HiCacheTier {self.session!r}>"
