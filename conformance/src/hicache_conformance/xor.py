"""The simplest cipher whose failure shows at once: a page transform for tests, benchmarks and cases."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hicache_core.namespace import TransformIdentity
from hicache_core.types import IoContext, Outcome, Page


class Xor:
    """Every byte against `key`. in_place: whether decode may be given the same memory as source and destination."""

    changes_length = False

    def __init__(self, key: int = 0x5A, in_place: bool = True) -> None:
        self.key = key
        self.in_place_decode = in_place
        self.identity = TransformIdentity("xor", "1", key_id=f"{key:02x}")

    def max_size(self, nbytes: int) -> int:
        """As long as the page."""
        return nbytes

    def encode(self, ctx: IoContext, keys: Sequence[str], pages: Sequence[Page]) -> list[Page]:
        """New pages, region by region."""
        return [[np.bitwise_xor(np.frombuffer(b, np.uint8), np.uint8(self.key)).data for b in page] for page in pages]

    def decode(
        self,
        ctx: IoContext,
        keys: Sequence[str],
        src: Sequence[Page],
        lengths: list[int],
        dst: Sequence[Page],
        outcomes: list[Outcome],
    ) -> list[Outcome]:
        """Back into the page, whatever the regions of source and destination are."""
        for source, target, length, outcome in zip(src, dst, lengths, outcomes, strict=True):
            if outcome is not Outcome.HIT:
                continue
            if self.in_place_decode and len(source) == len(target):
                for before, after in zip(source, target, strict=True):
                    np.bitwise_xor(
                        np.frombuffer(before, np.uint8), np.uint8(self.key), out=np.frombuffer(after, np.uint8)
                    )
                continue
            plain = np.bitwise_xor(np.frombuffer(b"".join(source)[:length], np.uint8), np.uint8(self.key))
            at = 0
            for buffer in target:
                part = plain[at : at + len(buffer)]
                np.frombuffer(buffer, np.uint8)[: len(part)] = part
                at += len(part)
        return outcomes
