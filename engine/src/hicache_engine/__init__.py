"""The reference engine: a real small language model whose KV cache lives in hicache's hierarchy."""

from __future__ import annotations

__version__ = "0.1.0"
