"""The engine: a model, its device pool, the cache above it, and the scheduler that runs requests."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from types import TracebackType

import torch

from hicache_core.config.model import HiCacheConfig
from hicache_core.hicache import HiCache
from hicache_core.namespace import Identity
from hicache_core.pools.device.torch_pool import TorchDevicePool
from hicache_core.pools.geometry import KVGeometry

from .errors import RequestAborted, RequestError
from .job import Completion, Delta, Job, Listener
from .loading import LoadedModel
from .sampling import SamplingParams
from .scheduler import Scheduler, SchedulerSettings
from .tokenizer import TokenIds

GREEDY = SamplingParams()
USUAL = SchedulerSettings()
QUEUE_SECONDS = 0.02


class Engine:
    """Serves one model. Everything belongs to one thread; `service.EngineService` is the way in from others.

    config: settings of the hierarchy; its page_size is the engine's. device_pages: pages of the device pool.
    tenant: keeps stored pages apart from other tenants'. Raises ConfigError and OpenError as the cache does.
    """

    def __init__(
        self,
        model: LoadedModel,
        config: HiCacheConfig,
        *,
        device_pages: int = 512,
        settings: SchedulerSettings = USUAL,
        tenant: str = "",
    ) -> None:
        settings.check(config.page_size)
        shape = model.llama.config
        geometry = KVGeometry(
            "mha", shape.layers, shape.kv_heads, shape.head_dim, dtype=model.dtype_name, page_size=config.page_size
        )
        self.identity = Identity(
            model=model.name,
            weights=model.weights_id,
            dtype=model.dtype_name,
            page_size=config.page_size,
            kind="mha",
            layer_num=shape.layers,
            head_num=shape.kv_heads,
            head_dim=shape.head_dim,
            layout=config.hicache_mem_layout,
            tenant=tenant,
        )
        self.model = model
        self.tokenizer = model.tokenizer
        self.pool = TorchDevicePool(geometry, device_pages, model.llama.device)
        self.cache = HiCache.build(config, device_pool=self.pool, identity=self.identity)
        self.scheduler = Scheduler(
            model.llama, self.pool, self.cache, model.tokenizer, num_pages=device_pages, settings=settings
        )
        self._numbers = itertools.count(1)

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def encode(self, prompt: str | TokenIds) -> TokenIds:
        """Token ids of a prompt. Raises RequestError for text without UTF-8, and ids the model does not have."""
        try:
            ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        except UnicodeEncodeError as error:
            raise RequestError(f"the prompt is not UTF-8: {error}", "prompt") from error
        vocab = self.model.llama.config.vocab
        if len(ids) and int(ids.max()) >= vocab:
            raise RequestError(f"token id {int(ids.max())} is outside the vocabulary of {vocab}", "prompt")
        return ids

    def submit(
        self,
        prompt: str | TokenIds,
        params: SamplingParams = GREEDY,
        *,
        rid: str | None = None,
        listener: Listener | None = None,
        extra_key: str | None = None,
        cache_salt: str | None = None,
        priority: int = 0,
        reuse_limit: int | None = None,
        keep_logits: bool = False,
    ) -> Job:
        """Queue a request. reuse_limit: so many leading tokens, at most, may come from the cache.

        extra_key, cache_salt: only requests with the same ones share pages. Raises RequestError where it can
        never run.
        """
        job = Job(
            rid or f"req-{next(self._numbers)}",
            self.encode(prompt),
            params,
            extra_key=extra_key,
            cache_salt=cache_salt,
            priority=priority,
            reuse_limit=reuse_limit,
            keep_logits=keep_logits,
            listener=listener,
        )
        self.scheduler.add(job)
        return job

    def step(self) -> bool:
        """One scheduling pass; False where nothing could be computed."""
        return self.scheduler.step()

    def generate(
        self,
        prompts: Sequence[str | TokenIds],
        params: SamplingParams | Sequence[SamplingParams] = GREEDY,
        *,
        reuse_limit: int | None = None,
        keep_logits: bool = False,
        cache_salt: str | None = None,
    ) -> list[Completion]:
        """Run the prompts to their end, together. Raises RequestAborted where one ends in an error."""
        each = [params] * len(prompts) if isinstance(params, SamplingParams) else list(params)
        ends: dict[str, Completion] = {}

        def listen(event: Delta | Completion) -> None:
            if isinstance(event, Completion):
                ends[event.rid] = event

        jobs = [
            self.submit(
                prompt, p, listener=listen, reuse_limit=reuse_limit, keep_logits=keep_logits, cache_salt=cache_salt
            )
            for prompt, p in zip(prompts, each, strict=True)
        ]
        self.run_until_idle()
        for end in ends.values():
            if end.reason == "error":
                raise RequestAborted(f"request {end.rid}: {end.error}")
        return [ends[job.rid] for job in jobs]

    def run_until_idle(self) -> None:
        """Run every request to its end."""
        while self.scheduler.busy:
            if not self.step():
                self.wait(1.0)

    def wait(self, timeout: float) -> None:
        """Park until the cache's threads have something to say, at most `timeout` seconds.

        With requests in the queue it looks up more often: a prefetch's patience may end without any event.
        """
        self.cache.wait_for_events(min(timeout, QUEUE_SECONDS) if self.scheduler.waiting else timeout)

    def close(self, timeout: float = 30.0) -> None:
        """Abort what is unfinished and shut the cache down. Copies and writes under way are waited for."""
        self.scheduler.abort_all()
        self.cache.shutdown(timeout)


def use_threads(count: int | None) -> None:
    """Threads of torch's own pool; None: as many as torch likes. Setting it also turns off MKL's own choice of fewer
    threads, on which the order of a sum, and so its last bit, can depend."""
    torch.set_num_threads(count or torch.get_num_threads())
