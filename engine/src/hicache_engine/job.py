"""One generation on its way through the engine, and what comes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Literal

import msgspec
import numpy as np
from torch import Tensor

from .answer import AnswerText
from .sampling import Sampler, SamplingParams
from .tokenizer import TextTokenizer, TokenIds

if TYPE_CHECKING:
    from hicache_core.controller.request import CacheReport, Request

FinishReason = Literal["stop", "length", "abort", "error"]


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of one answer, and where those of the prompt came from.

    device + host + storage + recomputed = prompt_tokens. `lost`: tokens that a tier was known to have and that were
    computed all the same, by reason. `ended`: why the run of hits ended where it did.
    """

    prompt_tokens: int
    completion_tokens: int
    device: int
    host: int
    storage: int
    recomputed: int
    lost: dict[str, int] = {}
    ended: str = ""

    @property
    def cached(self) -> int:
        """Prompt tokens that were not computed."""
        return self.device + self.host + self.storage

    @property
    def by_tier(self) -> dict[str, int]:
        """tokens_by_tier as reports show it."""
        return {
            "device": self.device,
            "host": self.host,
            "storage": self.storage,
            "recomputed": self.recomputed,
        }


@dataclass(frozen=True, slots=True)
class Delta:
    """One more token. `text` is what can be shown now; it may be empty while a character is incomplete."""

    rid: str
    token: int
    text: str


@dataclass(frozen=True, slots=True)
class Completion:
    """The end of a generation."""

    rid: str
    tokens: tuple[int, ...]
    text: str
    tail: str
    """The end of `text`, which no Delta carried."""
    reason: FinishReason
    usage: Usage
    ttft: float | None
    """Seconds from submission to the first token; None where there was none."""
    queued: float | None
    """Seconds from submission to admission: waiting for L3 and for room; None where it was not admitted."""
    error: str = ""
    logits: Tensor | None = None
    """float32[vocab] after the last prompt token, where asked for."""


Listener = Callable[[Delta | Completion], None]
"""Told of every event of a job, on the engine's thread; must not block or raise."""


class Phase(Enum):
    """Where a job stands."""

    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    ENDED = "ended"


@dataclass(eq=False)
class Job:
    """A generation. Owned by the scheduler's thread once it was added."""

    rid: str
    prompt: TokenIds
    params: SamplingParams
    extra_key: str | None = None
    cache_salt: str | None = None
    priority: int = 0
    reuse_limit: int | None = None
    """At most that many leading tokens may come from the cache; the last one never does."""
    keep_logits: bool = False
    listener: Listener | None = None
    arrived: float = 0.0

    phase: Phase = Phase.WAITING
    request: Request | None = None
    """What the cache knows of it; None until it is added."""
    ready: bool = False
    """The cache's prefetch is over; it may be admitted."""
    producer: int = -1
    """The load that its forward pass waits for; -1: none."""
    computed: int = 0
    """Leading tokens whose KV is in the device pool (or being loaded there, see producer)."""
    outputs: list[int] = field(default_factory=list)
    report: CacheReport | None = None
    """Of the first admission."""
    admitted_at: float | None = None
    first_token_at: float | None = None
    first_logits: Tensor | None = None
    failed_loads: int = 0
    preemptions: int = 0
    text: str = ""

    def start(self, tokenizer: TextTokenizer) -> None:
        """Prepare what turns logits into text."""
        self.sampler = Sampler(self.params)
        self.answer = AnswerText(tokenizer, self.params.stop)

    @property
    def tokens(self) -> TokenIds:
        """Prompt and output so far, uint32[n]."""
        return np.concatenate([self.prompt, np.asarray(self.outputs, dtype=np.uint32)])

    def usage(self) -> Usage:
        """What it has taken so far."""
        report, prompt = self.report, len(self.prompt)
        done = len(self.outputs)
        if report is None:
            return Usage(prompt_tokens=prompt, completion_tokens=done, device=0, host=0, storage=0, recomputed=0)
        return Usage(
            prompt_tokens=prompt,
            completion_tokens=done,
            device=report.device,
            host=report.host,
            storage=report.storage,
            recomputed=report.recomputed,
            lost=dict(report.lost),
            ended=report.ended,
        )
