"""A writer that can be killed in the middle, whatever the store: a `dynamic` backend that stores page by page.

Fast stores take a whole prompt at once, in less time than it takes to count what is there.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from hicache_core.plugin.select import choose_backend, open_backend
from hicache_core.storage.binding import HookBinding
from hicache_core.types import IoContext, OpenContext, Outcome, Page

PAUSE = 0.02
"""Seconds before each page."""


class Trickle:
    """options: inner (a backend's name), inner_options."""

    def __init__(self, options: Mapping[str, Any], ctx: OpenContext) -> None:
        choice = choose_backend(options["inner"], options["inner_options"])
        backend = open_backend(choice, ctx)
        self.capabilities = getattr(backend, "capabilities", choice.capabilities)
        self._inner = HookBinding(backend)
        self._pause = threading.Event()

    def batch_exists(self, keys: Sequence[str], ctx: IoContext) -> int:
        """The inner store's answer."""
        run: int = self._inner.call("batch_exists", keys=keys, ctx=ctx)
        return run

    def batch_get(self, keys: Sequence[str], pages: Sequence[Page], ctx: IoContext) -> list[Outcome]:
        """The inner store's answer."""
        outcomes: list[Outcome] = self._inner.call("batch_get", keys=keys, pages=pages, ctx=ctx)
        return outcomes

    def batch_set(self, keys: Sequence[str], pages: Sequence[Page], ctx: IoContext) -> list[Outcome]:
        """The inner store's answers, one page after the other."""
        outcomes: list[Outcome] = []
        for key, page in zip(keys, pages, strict=True):
            self._pause.wait(PAUSE)
            outcomes += self._inner.call("batch_set", keys=[key], pages=[page], ctx=ctx)
        return outcomes

    def close(self) -> None:
        """Close the inner store."""
        self._inner.call("close")
