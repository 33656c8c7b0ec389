"""Continuous batching over the cache's request flow.

Each pass (`step`): settle what the cache's threads have done; one prefill chunk's worth of tokens; one token for
every sequence that is decoding. A request is queued, looked up in L3 (`prefetch_from_storage`), waits until its
prefetch is over (`check_prefetch_progress`), is admitted when the device pool has room (`init_load_back`), computes
what was not found, chunk by chunk, each layer waiting for its own pages, and enters the tree.

Three choices:
* Chunks end at absolute multiples of the chunk size and run alone, so that the same chunk of the same prompt is the
  same computation whatever the cache had and whoever else is running. Resuming at a chunk's end is then bit-equal.
* A prompt enters the tree when its first token is out, not after each chunk: write-through starts copying at once,
  and on few cores those copies would take their time from the prefill that someone waits for. No other request could
  have used the pages before, since a prompt that fills a pass's budget runs alone.
* Where the pool is full the youngest sequence goes back to the queue; what it has computed stays in the tree as long
  as there is room, so that usually only its last pages are computed again.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from torch import Tensor

from hicache_core.clock import Clock, monotonic
from hicache_core.controller.load import NOTHING
from hicache_core.errors import ConfigError, TransferError

from .errors import RequestError
from .job import Completion, Delta, FinishReason, Job, Phase
from .model import Llama
from .paged import KVPool, Segment
from .tokenizer import TextTokenizer

if TYPE_CHECKING:
    from hicache_core.controller.request import Request
    from hicache_core.hicache import HiCache

MAX_FAILED_LOADS = 2
"""After so many failed loads a request computes everything."""


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """chunk: tokens of one prefill pass, a multiple of the page size. max_running: sequences at once."""

    chunk: int = 256
    max_running: int = 8

    def check(self, page_size: int) -> None:
        """Raises ConfigError where these cannot be, or do not fit the page size."""
        if self.chunk < page_size or self.chunk % page_size:
            raise ConfigError(f"chunk is {self.chunk} tokens; it must be a multiple of the page size, {page_size}")
        if self.max_running < 1:
            raise ConfigError(f"max_running is {self.max_running}; it must be at least 1")


class Scheduler:
    """Runs jobs. Every method belongs to one thread, the engine's."""

    def __init__(
        self,
        llama: Llama,
        pool: KVPool,
        cache: HiCache,
        tokenizer: TextTokenizer,
        *,
        num_pages: int,
        settings: SchedulerSettings = SchedulerSettings(),
        clock: Clock = monotonic,
    ) -> None:
        self.settings = settings
        self.page_size = pool.geometry.page_size
        self.num_pages = num_pages
        self._llama, self._pool, self._cache, self._tokenizer, self._clock = llama, pool, cache, tokenizer, clock
        self._waiting: deque[Job] = deque()
        self._running: list[Job] = []
        self._no_room = False

    @property
    def max_tokens(self) -> int:
        """Most tokens, prompt and answer together, that one request can have."""
        return min(self._llama.config.context, self.num_pages * self.page_size)

    @property
    def waiting(self) -> int:
        """Jobs in the queue."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Jobs that hold device pages."""
        return len(self._running)

    @property
    def busy(self) -> bool:
        """Whether any job is unfinished."""
        return bool(self._waiting or self._running)

    def check(self, prompt_tokens: int, max_tokens: int) -> None:
        """Raises RequestError where a request of this size can never run."""
        if prompt_tokens < 1:
            raise RequestError("the prompt has no tokens", "prompt")
        if prompt_tokens + max_tokens > self.max_tokens:
            raise RequestError(
                f"{prompt_tokens} prompt tokens and max_tokens {max_tokens} are more than this engine holds for one "
                f"request: {self.max_tokens} (context {self._llama.config.context}, device pool of {self.num_pages} "
                f"pages of {self.page_size})",
                "max_tokens" if prompt_tokens < self.max_tokens else "prompt",
            )

    def add(self, job: Job) -> None:
        """Queue a job and start looking for its prefix. Raises RequestError where it can never run."""
        self.check(len(job.prompt), job.params.max_tokens)
        job.start(self._tokenizer)
        job.arrived = self._clock()
        self._enter(job)
        self._waiting.append(job)

    def abort(self, job: Job, error: str = "", reason: FinishReason = "abort") -> None:
        """End a job wherever it is. Nothing happens where it has ended."""
        if job.phase is Phase.ENDED:
            return
        if job.phase is Phase.WAITING:
            self._waiting.remove(job)
        self._leave(job, keep=not error)
        self._end(job, reason, error)

    def abort_all(self) -> None:
        """End every job."""
        for job in [*self._waiting, *self._running]:
            self.abort(job)

    def step(self) -> bool:
        """One pass. False: nothing could be computed (the cache may have to finish something first)."""
        if self._cache.check_hicache_events() or not self._running:
            self._no_room = False
        budget = self.settings.chunk
        computed = 0
        for job in [j for j in self._running if j.phase is Phase.PREFILL]:
            if computed < budget:
                computed += self._prefill(job)
        for job in self._admit(budget - computed):
            computed += self._prefill(job)
        return bool(self._decode() or computed)

    # Queue

    def _enter(self, job: Job) -> None:
        limit = len(job.prompt) + len(job.outputs) - 1
        job.request = self._cache.new_request(
            job.rid,
            job.tokens,
            extra_key=job.extra_key,
            cache_salt=job.cache_salt,
            priority=job.priority,
            reuse_limit=limit if job.reuse_limit is None else min(limit, job.reuse_limit),
        )
        job.phase, job.computed, job.producer = Phase.WAITING, 0, NOTHING
        job.ready = not self._cache.prefetch_from_storage(job.request)

    def _admit(self, budget: int) -> list[Job]:
        """Take jobs from the queue while there is room; a prefetch is judged only where its job could start now."""
        admitted: list[Job] = []
        for job in list(self._waiting):
            if budget <= 0 or self._no_room or len(self._running) >= self.settings.max_running:
                break
            job.ready = job.ready or self._cache.check_prefetch_progress(_request(job))
            if not job.ready:
                continue
            if not self._place(job) and not self._place_alone(job, admitted):
                self._no_room = True
                break
            self._waiting.remove(job)
            self._running.append(job)
            admitted.append(job)
            budget -= self._chunk_end(job) - job.computed
        if admitted:
            producer = self._cache.ready_to_load_host_cache()
            for job in admitted:
                job.producer = producer
        return admitted

    def _place(self, job: Job) -> bool:
        """Give a job the pages it starts with: those that were found, and new ones up to its next token."""
        request = _request(job)
        self._cache.init_load_back(request)
        missing = self._pages(len(request) + 1) - len(request.slots)
        slots = self._cache.alloc_pages(missing)
        if slots is None:
            self._cache.abandon(request)
            return False
        request.add_slots(slots)
        job.computed = request.prefix_pages * self.page_size
        job.report = job.report or request.report
        job.phase = Phase.PREFILL
        job.admitted_at = job.admitted_at or self._clock()
        return True

    def _place_alone(self, job: Job, admitted: list[Job]) -> bool:
        """A second try for a job that finds no room although nothing is running or under way that could make some.

        What other waiting requests have fetched may stand in the way; they let go of it and fetch again. Where that
        does not help either the job ends in an error.
        """
        if self._running or admitted or not self._cache.idle:
            return False
        for other in self._waiting:
            if other is not job:
                self._cache.abort_req(_request(other))
                self._enter(other)
        if self._place(job):
            return True
        free = self._cache.device_pool.available + self._cache.tree.device_evictable_pages
        needed = self._pages(len(_request(job)) + 1)
        self.abort(job, f"{needed} device pages are needed, {free} of {self.num_pages} can be had", "error")
        return False

    def _pages(self, tokens: int) -> int:
        return -(-tokens // self.page_size)

    # Computing

    def _chunk_end(self, job: Job) -> int:
        chunk = self.settings.chunk
        return min(len(_request(job)), (job.computed // chunk + 1) * chunk)

    def _prefill(self, job: Job) -> int:
        """One chunk; how many tokens."""
        request, start, end = _request(job), job.computed, self._chunk_end(job)
        gate = None if job.producer == NOTHING else partial(self._cache.wait_layer, job.producer)
        try:
            logits = self._llama.forward([Segment(request.tokens[start:end], start, request.slots)], self._pool, gate)
        except TransferError:
            self._load_failed(job)
            return 0
        job.computed, job.producer = end, NOTHING
        if end == len(request):
            if job.keep_logits and job.first_logits is None:
                job.first_logits = logits[0].clone()
            job.phase = Phase.DECODE
            self._take_token(job, logits[0])
            if job.phase is Phase.DECODE:
                self._cache.cache_unfinished_req(request, job.computed)
        return end - start

    def _load_failed(self, job: Job) -> None:
        """Start over; the cache has forgotten the pages that did not come."""
        job.failed_loads += 1
        request = _request(job)
        self._cache.abandon(request)
        if job.failed_loads >= MAX_FAILED_LOADS:
            request.reuse_limit = 0
        self._running.remove(job)
        self._waiting.appendleft(job)
        job.phase, job.computed, job.producer, job.report = Phase.WAITING, 0, NOTHING, None

    def _decode(self) -> int:
        """One token for every sequence that has room for it; how many."""
        for job in [j for j in self._running if j.phase is Phase.DECODE]:
            if job.phase is Phase.DECODE:
                self._make_room(job)
        batch = [j for j in self._running if j.phase is Phase.DECODE]
        if not batch:
            return 0
        segments = []
        for job in batch:
            request = _request(job)
            segments.append(Segment(request.tokens[job.computed :], job.computed, request.slots))
        logits = self._llama.forward(segments, self._pool)
        for job, row in zip(batch, logits, strict=True):
            job.computed += 1
            self._take_token(job, row)
        return len(batch)

    def _make_room(self, job: Job) -> None:
        """A page for the next token; where there is none, the youngest sequences go back to the queue."""
        request = _request(job)
        while job.phase is Phase.DECODE and len(request) > len(request.slots) * self.page_size:
            slots = self._cache.alloc_pages(1)
            if slots is None:
                self._preempt(self._running[-1])
            else:
                request.add_slots(slots)

    def _preempt(self, job: Job) -> None:
        job.preemptions += 1
        self._leave(job, keep=True)
        self._enter(job)
        self._waiting.appendleft(job)
        self._no_room = False

    def _take_token(self, job: Job, logits: Tensor) -> None:
        try:
            token = job.sampler(logits)
        except RuntimeError as error:  # these logits are this job's alone: the others go on
            self.abort(job, f"no token can be drawn from its logits: {error}", "error")
            return
        job.first_token_at = job.first_token_at or self._clock()
        stop = token in self._tokenizer.stop_ids and not job.params.ignore_eos
        if not stop:
            job.outputs.append(token)
            _request(job).extend([token])
            text = job.answer.push(token)
            job.text += text
            self._tell(job, Delta(job.rid, token, text))
            stop = job.answer.stopped
        if stop or len(job.outputs) >= job.params.max_tokens:
            self._leave(job, keep=True)
            self._end(job, "stop" if stop else "length")

    # Leaving

    def _leave(self, job: Job, *, keep: bool) -> None:
        """Give pages and locks back; what was computed enters the tree where `keep`."""
        request = _request(job)
        if job in self._running:
            self._running.remove(job)
        if (
            keep
            and job.phase in (Phase.PREFILL, Phase.DECODE)
            and job.producer == NOTHING
            and not request.load_failed
        ):
            self._cache.cache_finished_req(request, job.computed)
        else:
            self._cache.abort_req(request)
        self._no_room = False

    def _end(self, job: Job, reason: FinishReason, error: str = "") -> None:
        job.phase = Phase.ENDED
        tail = job.answer.finish()
        job.text += tail
        end = Completion(
            rid=job.rid,
            tokens=tuple(job.outputs),
            text=job.text,
            tail=tail,
            reason=reason,
            usage=job.usage(),
            ttft=None if job.first_token_at is None else job.first_token_at - job.arrived,
            queued=None if job.admitted_at is None else job.admitted_at - job.arrived,
            error=error,
            logits=job.first_logits,
        )
        self._tell(job, end)

    def _tell(self, job: Job, event: Delta | Completion) -> None:
        if job.listener is not None:
            job.listener(event)


def _request(job: Job) -> Request:
    assert job.request is not None  # set by `add`
    return job.request
