"""Attention over a paged pool: where each token's keys and values go, and which pages a sequence reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from hicache_core.pools.geometry import KVGeometry
from hicache_core.types import Slots


class KVPool(Protocol):
    """What attention needs of a device pool (`hicache_core.pools.device.TorchDevicePool` is one)."""

    @property
    def geometry(self) -> KVGeometry:
        """Shape of the pool."""

    def k(self, layer: int) -> Tensor:
        """Keys of a layer, [num_pages, page_size, heads, head_dim]."""

    def v(self, layer: int) -> Tensor:
        """Values of a layer, [num_pages, page_size, heads, head_dim]."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive tokens of one sequence: `tokens` at positions start, start + 1, … .

    `slots` are the pages of the sequence in order; those below `start` must be valid, those that hold the new tokens
    are written.
    """

    tokens: npt.NDArray[np.uint32]
    start: int
    slots: Slots


@dataclass(frozen=True, slots=True)
class Plan:
    """A batch, laid out once for all layers."""

    tokens: Tensor
    """int64[N]: the segments' tokens, one after the other."""
    positions: Tensor
    """int64[N]"""
    write_to: Tensor
    """int64[N]: token index of the pool (slot * page_size + offset) where each token's rows go."""
    last: Tensor
    """int64[segments]: row of the last token of each segment."""
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Span:
    """One segment's attention: rows of the batch, pages to read, and the mask."""

    first: int
    end: int
    pages: Tensor
    length: int
    """Tokens to attend to: start + new."""
    mask: Tensor | None
    """bool[new, length], or None where the only new token sees everything."""


def make_plan(segments: Sequence[Segment], pool: KVPool, device: torch.device) -> Plan:
    """Lay out a batch. Raises ValueError where a segment is empty or has too few pages."""
    page, row = pool.geometry.page_size, 0
    positions, write_to, spans = [], [], []
    for segment in segments:
        count, end = len(segment.tokens), segment.start + len(segment.tokens)
        needed = -(-end // page)
        if not count or needed > len(segment.slots):
            raise ValueError(f"a segment of {count} tokens up to {end} with {len(segment.slots)} pages of {page}")
        at = np.arange(segment.start, end, dtype=np.int64)
        positions.append(at)
        write_to.append(segment.slots[at // page] * page + at % page)
        pages = torch.from_numpy(np.ascontiguousarray(segment.slots[:needed])).to(device)
        spans.append(Span(row, row + count, pages, end, _mask(at, end, device) if count > 1 else None))
        row += count

    def joined(parts: Sequence[npt.NDArray[np.int64]]) -> Tensor:
        return torch.from_numpy(np.concatenate(parts)).to(device)

    tokens = joined([s.tokens.astype(np.int64) for s in segments])
    last = torch.tensor([s.end - 1 for s in spans], device=device)
    return Plan(tokens, joined(positions), joined(write_to), last, tuple(spans))


def _mask(at: npt.NDArray[np.int64], end: int, device: torch.device) -> Tensor:
    rows, columns = torch.from_numpy(at).to(device)[:, None], torch.arange(end, device=device)
    return columns <= rows


def attend(q: Tensor, k: Tensor, v: Tensor, plan: Plan, k_pool: Tensor, v_pool: Tensor) -> Tensor:
    """Write the new rows k, v into the pool, then attend over the pages. q: [N, heads, d]; returns [N, heads, d]."""
    k_pool.view(-1, *k_pool.shape[2:]).index_copy_(0, plan.write_to, k)
    v_pool.view(-1, *v_pool.shape[2:]).index_copy_(0, plan.write_to, v)
    parts = [_attend_span(q[s.first : s.end], s, k_pool, v_pool) for s in plan.spans]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _attend_span(q: Tensor, span: Span, k_pool: Tensor, v_pool: Tensor) -> Tensor:
    def gathered(pool: Tensor) -> Tensor:
        """[1, heads, length, d]"""
        return pool.index_select(0, span.pages).flatten(0, 1)[: span.length].transpose(0, 1)[None]

    mixed = F.scaled_dot_product_attention(
        q.transpose(0, 1)[None], gathered(k_pool), gathered(v_pool), attn_mask=span.mask, enable_gqa=True
    )
    return mixed[0].transpose(0, 1)
