"""A store in memory whose reads can be held while they are under way. Found by the backend `dynamic`."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from hicache_core.types import Capabilities, IoContext, Outcome, Page

entered = threading.Event()
"""Set once a held read is inside the store."""
gate = threading.Event()
"""While it is not set, reads wait, and go on to fill what they were given."""
gate.set()
returned = threading.Semaphore(0)
"""Released each time that a read has written its last byte."""
kept: dict[str, bytes] = {}


class Staged:
    """Takes pages as buffers only, so a pool that is lent is read into by way of the session's memory."""

    def batch_exists(self, keys: Sequence[str], ctx: IoContext) -> int:
        """Run of known keys."""
        return next((n for n, key in enumerate(keys) if key not in kept), len(keys))

    def batch_get(self, keys: Sequence[str], pages: Sequence[Page], ctx: IoContext) -> list[Outcome]:
        """Fill the pages, after the gate."""
        return _read(keys, pages)

    def batch_set(self, keys: Sequence[str], pages: Sequence[Page], ctx: IoContext) -> list[Outcome]:
        """Keep copies."""
        for key, page in zip(keys, pages, strict=True):
            _keep(key, page)
        return [Outcome.STORED] * len(keys)

    def close(self) -> None:
        """Let whoever waits go."""
        gate.set()


def _keep(key: str, page: Page) -> None:
    kept[key] = b"".join(page)


def _read(keys: Sequence[str], targets: Sequence[Page]) -> list[Outcome]:
    if not gate.is_set():
        entered.set()
        gate.wait(60)
    outcomes = []
    for key, target in zip(keys, targets, strict=True):
        data, at = kept.get(key), 0
        for buffer in target if data is not None else ():
            buffer[:] = data[at : at + buffer.nbytes]  # type: ignore[index]
            at += buffer.nbytes
        outcomes.append(Outcome.MISS if data is None else Outcome.HIT)
    returned.release()
    return outcomes


class Native(Staged):
    """Reads straight into the registered pool, so its reads are never abandoned."""

    capabilities = Capabilities(zero_copy_v1=True)

    def batch_get_v1(self, keys: Sequence[str], host_indices: Any, ctx: IoContext) -> list[Outcome]:
        """Fill the pool's pages, after the gate."""
        assert isinstance(ctx.pages, Sequence)
        return _read(keys, ctx.pages)
