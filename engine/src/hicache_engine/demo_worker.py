"""A process of the demo: runs one prompt under some configurations and writes down what happened.

    python -m hicache_engine.demo_worker JOB.json RESULT.json

The demo starts it anew for each life that it wants to show, so that nothing but the store is shared.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import torch

from hicache_core.config.model import HiCacheConfig
from hicache_core.errors import ConfigError
from hicache_core.switching import share_the_gil

from .engine import Engine
from .job import Completion
from .loading import LoadedModel
from .sampling import SamplingParams
from .settings import EngineOptions
from .tokenizer import TokenIds

Say = Callable[[str], None]
"""Told of each step of the demo, in words."""


class Life(msgspec.Struct, kw_only=True):
    """One configuration and the answers asked of it."""

    name: str
    cache: HiCacheConfig
    tenant: str = ""
    rounds: int = 1
    """Times that the prompt is answered; L1 and L2 are emptied before each."""
    reuse_limit: int | None = None
    store: bool = True
    """Wait until the prompt is in L3 before going on."""
    keep_logits: bool = False


class WorkerJob(msgspec.Struct, kw_only=True):
    """What a process does."""

    options: EngineOptions
    prompt: str
    max_tokens: int
    lives: list[Life]
    """In this order; with `alternate`, a round of each in turn instead."""
    alternate: bool = False
    logits_dir: str = ""


class Answer(msgspec.Struct, kw_only=True):
    """One answer."""

    text: str
    tokens_by_tier: dict[str, int]
    lost: dict[str, int]
    ended: str
    ttft_ms: float
    stored: bool | None = None
    """Whether the prompt was in L3 afterwards, where that was waited for."""


class WorkerResult(msgspec.Struct, kw_only=True):
    """What a process did."""

    pid: int
    model: str
    weights: str
    prompt_tokens: int
    answers: dict[str, list[Answer]]
    identities: dict[str, dict[str, Any]]
    """By life: what its pages depend on, and so the namespace."""
    ledger_balanced: dict[str, bool]


BARRIER_SECONDS = 60.0
CLOSE_SECONDS = 30.0


class _Running:
    """One life under way."""

    def __init__(self, life: Life, options: EngineOptions, model: LoadedModel) -> None:
        self.life = life
        mine = msgspec.structs.replace(options, cache=life.cache, tenant=life.tenant)
        self.engine: Engine = mine.build(model)
        self.answers: list[Answer] = []

    @property
    def identity(self) -> dict[str, Any]:
        """What the pages depend on; a session adds what its store and transforms do to them."""
        session = self.engine.cache.session
        return dataclasses.asdict(self.engine.identity if session is None else session.identity)

    def answer(self, ids: TokenIds, max_tokens: int, logits_dir: str) -> None:
        """Empty L1 and L2, then answer once."""
        life, cache = self.life, self.engine.cache
        cache.reset()
        (end,) = self.engine.generate(
            [ids], SamplingParams(max_tokens=max_tokens), reuse_limit=life.reuse_limit, keep_logits=life.keep_logits
        )
        stored = None
        if life.store and life.cache.hicache_storage_backend:
            stored = cache.backup_barrier(ids, BARRIER_SECONDS)
            cache.drain(
                BARRIER_SECONDS
            )  # the answer's own pages too, so that the next round has the machine to itself
        self.answers.append(_answer(end, stored))
        if life.keep_logits and end.logits is not None:
            torch.save(end.logits, Path(logits_dir) / f"{life.name}.pt")


def _answer(end: Completion, stored: bool | None) -> Answer:
    assert end.ttft is not None
    return Answer(
        text=end.text,
        tokens_by_tier=end.usage.by_tier,
        lost=end.usage.lost,
        ended=end.usage.ended,
        ttft_ms=end.ttft * 1e3,
        stored=stored,
    )


def run(job: WorkerJob) -> WorkerResult:
    """Do a process's work."""
    model = job.options.load()
    tokenizer = model.tokenizer
    ids = tokenizer.encode(tokenizer.render([{"role": "user", "content": job.prompt}]))
    _warm_up(job.options, model, ids)
    running = []
    for life in job.lives:
        running.append(_Running(life, job.options, model))
        if not job.alternate:
            for _ in range(life.rounds):
                running[-1].answer(ids, job.max_tokens, job.logits_dir)
    if job.alternate:
        for turn in range(max(life.rounds for life in job.lives)):
            for each in running:
                if turn < each.life.rounds:
                    each.answer(ids, job.max_tokens, job.logits_dir)
    identities = {each.life.name: each.identity for each in running}
    balanced = {}
    for each in running:
        each.engine.close(CLOSE_SECONDS if each.life.store else 1.0)
        balanced[each.life.name] = each.engine.cache.ledger.balanced()
    answers = {each.life.name: each.answers for each in running}
    return WorkerResult(
        pid=os.getpid(),
        model=model.name,
        weights=model.weights_id,
        prompt_tokens=len(ids),
        answers=answers,
        identities=identities,
        ledger_balanced=balanced,
    )


def _warm_up(options: EngineOptions, model: LoadedModel, ids: TokenIds) -> None:
    """Page in the weights and let torch choose its kernels, without any cache."""
    alone = msgspec.structs.replace(options.cache, hicache_storage_backend=None, hicache_storage_backend_options={})
    with msgspec.structs.replace(options, cache=alone).build(model) as engine:
        engine.generate([ids[: 2 * options.chunk]], SamplingParams(max_tokens=2))


def main() -> None:
    """Run as a script."""
    job_path, result_path = sys.argv[1:3]
    share_the_gil()
    job = msgspec.json.decode(Path(job_path).read_bytes(), type=WorkerJob)
    try:
        result = run(job)
    except ConfigError as error:  # the person's, not the demo's: they need the sentence alone
        sys.exit(str(error))
    Path(result_path).write_bytes(msgspec.json.encode(result))


if __name__ == "__main__":
    main()
