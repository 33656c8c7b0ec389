"""Choosing the next token from logits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .errors import RequestError

LEAST_TEMPERATURE = 1e-5
"""Below, logits divided by it leave the range of float32; it is as good as greedy already."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a request's tokens are chosen and when it ends. temperature 0 is greedy.

    Raises RequestError naming the parameter that is out of range.
    """

    max_tokens: int = 128
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    """0: all."""
    seed: int | None = None
    stop: tuple[str, ...] = ()
    """Texts that end the answer; they are not part of it."""
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        checks = {
            "max_tokens": (self.max_tokens >= 1, "must be at least 1"),
            "temperature": (0.0 <= self.temperature <= 100.0, "must lie between 0 and 100"),
            "top_p": (0.0 < self.top_p <= 1.0, "must be above 0 and at most 1"),
            "top_k": (self.top_k >= 0, "must be 0 (all) or more"),
            "stop": (all(self.stop), "must not contain an empty text"),
        }
        for name, (good, rule) in checks.items():
            if not good:
                raise RequestError(f"{name} is {getattr(self, name)!r}; it {rule}", name)


class Sampler:
    """Draws one request's tokens. Its random numbers are its own, so the company in a batch does not matter."""

    def __init__(self, params: SamplingParams) -> None:
        self._params = params
        self._generator: torch.Generator | None = None
        if params.temperature > 0:
            self._generator = torch.Generator()
            if params.seed is None:
                self._generator.seed()
            else:
                self._generator.manual_seed(params.seed & (1 << 63) - 1)

    def __call__(self, logits: Tensor) -> int:
        """The next token. logits: float32[vocab]. Raises RuntimeError where they are no numbers to draw by."""
        if self._generator is None:
            return int(logits.argmax())
        sharpened = (logits - logits.max()) / max(self._params.temperature, LEAST_TEMPERATURE)
        kept = self._keep_best(sharpened.softmax(-1).cpu())
        return int(torch.multinomial(kept, 1, generator=self._generator))

    def _keep_best(self, odds: Tensor) -> Tensor:
        """Zero all but the `top_k` likeliest and, of these, the fewest that together reach `top_p`."""
        if not self._params.top_k and self._params.top_p >= 1.0:
            return odds
        best, ids = odds.sort(descending=True)
        if self._params.top_k:
            best[self._params.top_k :] = 0
        before = best.cumsum(-1) - best
        best[before > self._params.top_p * best.sum()] = 0
        return torch.zeros_like(odds).scatter_(0, ids, best)
