"""A Llama decoder in torch, whose keys and values live in a paged pool.

One code path serves prefill and decode: a batch is a list of segments, each some consecutive tokens of one sequence
with the pages that hold that sequence. The linear layers see all segments together, attention sees one at a time.
q and k rows are in GGUF's order (llama.cpp's conversion permutes them), so rotary embedding turns adjacent pairs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .errors import ModelFileError
from .paged import KVPool, Plan, Segment, attend, make_plan

LayerGate = Callable[[int], None]
"""Called with each layer's number before that layer reads the pool; returns when its pages are there."""


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """The shape of a Llama model. head_dim is dim / heads."""

    layers: int
    dim: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    context: int
    rope_base: float = 10_000.0
    norm_eps: float = 1e-5

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.dim // self.heads

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> LlamaConfig:
        """Read from the `llama.*` keys. Raises ModelFileError for another architecture or a missing key."""
        architecture = metadata.get("general.architecture")
        if architecture != "llama":
            raise ModelFileError(f"architecture {architecture!r}; only 'llama' is built")
        try:
            heads = int(metadata["llama.attention.head_count"])
            return cls(
                layers=int(metadata["llama.block_count"]),
                dim=int(metadata["llama.embedding_length"]),
                heads=heads,
                kv_heads=int(metadata.get("llama.attention.head_count_kv", heads)),
                ffn=int(metadata["llama.feed_forward_length"]),
                vocab=len(metadata["tokenizer.ggml.tokens"]),
                context=int(metadata["llama.context_length"]),
                rope_base=float(metadata.get("llama.rope.freq_base", 10_000.0)),
                norm_eps=float(metadata["llama.attention.layer_norm_rms_epsilon"]),
            )
        except KeyError as error:
            raise ModelFileError(f"the model file lacks the key {error}") from error


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One block. Matrices are [out, in]; q, k, v are stacked into one, gate and up into another."""

    attn_norm: Tensor
    qkv: Tensor
    out: Tensor
    ffn_norm: Tensor
    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True, slots=True)
class LlamaWeights:
    """The whole model. `head` is the embedding itself where they are tied."""

    embedding: Tensor
    layers: tuple[LayerWeights, ...]
    norm: Tensor
    head: Tensor


class Llama:
    """The model: weights, rotary tables, and the forward pass."""

    def __init__(self, config: LlamaConfig, weights: LlamaWeights) -> None:
        self.config, self.weights = config, weights
        self.dtype, self.device = weights.embedding.dtype, weights.embedding.device
        half = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
        angles = torch.outer(torch.arange(config.context, dtype=torch.float64), config.rope_base**-half)
        self._cos = angles.cos().to(self.device, torch.float32)[:, None, :]
        self._sin = angles.sin().to(self.device, torch.float32)[:, None, :]

    @torch.inference_mode()
    def forward(self, segments: Sequence[Segment], pool: KVPool, gate: LayerGate | None = None) -> Tensor:
        """Compute the segments' tokens, writing their keys and values into the pool.

        Returns the logits after the last token of each segment, float32[len(segments), vocab]. `gate(layer)` is
        called before a layer touches the pool; what it raises ends the pass.
        """
        plan = make_plan(segments, pool, self.device)
        x = F.embedding(plan.tokens, self.weights.embedding)
        cos, sin = self._cos[plan.positions], self._sin[plan.positions]
        for number, layer in enumerate(self.weights.layers):
            if gate is not None:
                gate(number)
            x = x + self._attention(number, layer, x, plan, pool, cos, sin)
            h = _rms_norm(x, layer.ffn_norm, self.config.norm_eps)
            both = F.linear(h, layer.gate_up)
            gate_rows, up_rows = both[:, : self.config.ffn], both[:, self.config.ffn :]
            x = x + F.linear(F.silu(gate_rows) * up_rows, layer.down)
        last = _rms_norm(x[plan.last], self.weights.norm, self.config.norm_eps)
        return F.linear(last, self.weights.head).float()

    def _attention(
        self, number: int, layer: LayerWeights, x: Tensor, plan: Plan, pool: KVPool, cos: Tensor, sin: Tensor
    ) -> Tensor:
        c = self.config
        rows = F.linear(_rms_norm(x, layer.attn_norm, c.norm_eps), layer.qkv)
        heads = rows.view(len(x), -1, c.head_dim)
        turned, v = _rotate(heads[:, : -c.kv_heads], cos, sin), heads[:, -c.kv_heads :]
        q, k = turned[:, : c.heads], turned[:, c.heads :]
        mixed = attend(q, k, v, plan, pool.k(number), pool.v(number))
        return F.linear(mixed.reshape(len(x), c.dim), layer.out)


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x.dtype) * weight


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of adjacent pairs. x: [n, heads, head_dim]; cos, sin: float32[n, 1, head_dim / 2]."""
    a, b = x.float().reshape(*x.shape[:-1], -1, 2).unbind(-1)
    return torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2).to(x.dtype)


def random_weights(config: LlamaConfig, *, seed: int = 0, dtype: torch.dtype = torch.float32) -> LlamaWeights:
    """Weights drawn from a fixed seed, on the CPU: the same bytes on every machine with the same torch.

    Queries and keys are drawn wider, so that attention picks out tokens and every page matters to what comes after;
    the head is not tied to the embedding, else the likeliest token would always be the last one.
    """
    generator = torch.Generator().manual_seed(seed)

    def matrix(rows: int, columns: int, gain: float = 1.0) -> Tensor:
        return (torch.randn(rows, columns, generator=generator) * (gain / math.sqrt(columns))).to(dtype)

    def attention_rows() -> Tensor:
        sharp = matrix((config.heads + config.kv_heads) * config.head_dim, config.dim, 1.7)
        return torch.cat([sharp, matrix(config.kv_heads * config.head_dim, config.dim, 2.0)])

    ones = torch.ones(config.dim, dtype=dtype)
    layers = tuple(
        LayerWeights(
            attn_norm=ones,
            qkv=attention_rows(),
            out=matrix(config.dim, config.dim),
            ffn_norm=ones,
            gate_up=matrix(2 * config.ffn, config.dim),
            down=matrix(config.dim, config.ffn),
        )
        for _ in range(config.layers)
    )
    return LlamaWeights(matrix(config.vocab, config.dim), layers, ones, matrix(config.vocab, config.dim))
