"""A layer between the core and the real store, for stores that stall, fail or lie."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np

from hicache_core.plugin.spec import hookimpl
from hicache_core.storage.binding import HookBinding
from hicache_core.types import Buffer, Capabilities, HostPoolView, IoContext, Outcome, Page

T = TypeVar("T")


class Proxy:
    """Hands every call on to the real backend object. Native v1 and v2 are left out: the core's defaults serve."""

    def __init__(self, backend: object) -> None:
        self.real = backend
        self.hooks = HookBinding(backend)
        capabilities = getattr(backend, "capabilities", None)
        if isinstance(capabilities, Capabilities):
            self.capabilities = msgspec.structs.replace(capabilities, nonblocking=False)  # a proxy may wait

    @hookimpl
    def batch_exists(self, keys: Sequence[str], ctx: IoContext) -> Any:
        """Handed on."""
        return self.hooks.call("batch_exists", keys=keys, ctx=ctx)

    @hookimpl
    def batch_get(self, keys: Sequence[str], pages: Sequence[Page], ctx: IoContext) -> Any:
        """Handed on."""
        return self.hooks.call("batch_get", keys=keys, pages=pages, ctx=ctx)

    @hookimpl
    def batch_set(self, keys: Sequence[str], pages: Sequence[Page], ctx: IoContext) -> Any:
        """Handed on."""
        return self.hooks.call("batch_set", keys=keys, pages=pages, ctx=ctx)

    @hookimpl
    def register_region(self, buffer: Buffer) -> None:
        """Handed on."""
        self.hooks.call("register_region", buffer=buffer)

    @hookimpl
    def unregister_region(self, buffer: Buffer) -> None:
        """Handed on."""
        self.hooks.call("unregister_region", buffer=buffer)

    @hookimpl
    def register_host_pool(self, view: HostPoolView) -> None:
        """Handed on."""
        self.hooks.call("register_host_pool", view=view)

    @hookimpl
    def unregister_host_pool(self, view: HostPoolView) -> None:
        """Handed on."""
        self.hooks.call("unregister_host_pool", view=view)

    @hookimpl
    def delete(self, keys: Sequence[str], ctx: IoContext) -> Any:
        """Handed on."""
        return self.hooks.call("delete", keys=keys, ctx=ctx)

    @hookimpl
    def clear(self, namespace: str) -> Any:
        """Handed on."""
        return self.hooks.call("clear", namespace=namespace)

    @hookimpl
    def close(self) -> None:
        """Handed on."""
        self.hooks.call("close")


class Stalling(Proxy):
    """Hooks named in `stalled` wait until `release` is set, then do what they should (`reached` counts them)."""

    def __init__(self, backend: object, stalled: Sequence[str]) -> None:
        super().__init__(backend)
        self.stalled = set(stalled)
        self.release = threading.Event()
        self.reached = 0

    def _gate(self, hook: str) -> None:
        if hook in self.stalled:
            self.reached += 1
            self.release.wait(120)

    @hookimpl
    def batch_exists(self, keys: Sequence[str], ctx: IoContext) -> Any:
        """Perhaps after a stall."""
        self._gate("batch_exists")
        return super().batch_exists(keys, ctx)

    @hookimpl
    def batch_get(self, keys: Sequence[str], pages: Sequence[Page], ctx: IoContext) -> Any:
        """Perhaps after a stall."""
        self._gate("batch_get")
        return super().batch_get(keys, pages, ctx)

    @hookimpl
    def batch_set(self, keys: Sequence[str], pages: Sequence[Page], ctx: IoContext) -> Any:
        """Perhaps after a stall."""
        self._gate("batch_set")
        return super().batch_set(keys, pages, ctx)


class Failing(Proxy):
    """Every data hook raises while `failing` is true."""

    def __init__(self, backend: object) -> None:
        super().__init__(backend)
        self.failing = False

    def _gate(self) -> None:
        if self.failing:
            raise ConnectionResetError("the store hung up")

    @hookimpl
    def batch_exists(self, keys: Sequence[str], ctx: IoContext) -> Any:
        """Raises, or hands on."""
        self._gate()
        return super().batch_exists(keys, ctx)

    @hookimpl
    def batch_get(self, keys: Sequence[str], pages: Sequence[Page], ctx: IoContext) -> Any:
        """Raises, or hands on."""
        self._gate()
        return super().batch_get(keys, pages, ctx)

    @hookimpl
    def batch_set(self, keys: Sequence[str], pages: Sequence[Page], ctx: IoContext) -> Any:
        """Raises, or hands on."""
        self._gate()
        return super().batch_set(keys, pages, ctx)


class Boasting(Proxy):
    """exists says that everything is there."""

    @hookimpl
    def batch_exists(self, keys: Sequence[str], ctx: IoContext) -> int:
        """All of them."""
        return len(keys)


class Recording(Proxy):
    """Keeps a copy of every page that reaches the store."""

    def __init__(self, backend: object) -> None:
        super().__init__(backend)
        self.seen: dict[str, bytes] = {}

    @hookimpl
    def batch_set(self, keys: Sequence[str], pages: Sequence[Page], ctx: IoContext) -> Any:
        """Noted, and handed on."""
        self.seen.update((key, b"".join(page)) for key, page in zip(keys, pages, strict=True))
        return super().batch_set(keys, pages, ctx)


class Damaging(Proxy):
    """Changes what a get read, on its way to the core: `spoil(key, page)` for every HIT."""

    def __init__(self, backend: object, spoil: Callable[[str, Page], None]) -> None:
        super().__init__(backend)
        self.spoil = spoil

    @hookimpl
    def batch_get(self, keys: Sequence[str], pages: Sequence[Page], ctx: IoContext) -> Any:
        """Read, then spoilt."""
        outcomes: list[Outcome] = super().batch_get(keys, pages, ctx)
        for key, page, outcome in zip(keys, pages, outcomes, strict=True):
            if outcome is Outcome.HIT:
                self.spoil(key, page)
        return outcomes


class Counting(Proxy):
    """Counts what is lent: regions by (address, bytes), pools by identity; a count of 0 is left out."""

    def __init__(self, backend: object) -> None:
        super().__init__(backend)
        self.regions: Counter[tuple[int, int]] = Counter()
        self.pools: Counter[int] = Counter()
        self.lent_regions = self.lent_pools = 0
        self.strange: list[object] = []

    @hookimpl
    def register_region(self, buffer: Buffer) -> None:
        """Counted and handed on."""
        self.lent_regions += 1
        self.regions[_place(buffer)] += 1
        super().register_region(buffer)

    @hookimpl
    def unregister_region(self, buffer: Buffer) -> None:
        """Counted and handed on."""
        self._less(self.regions, _place(buffer))
        super().unregister_region(buffer)

    @hookimpl
    def register_host_pool(self, view: HostPoolView) -> None:
        """Counted and handed on."""
        self.lent_pools += 1
        self.pools[id(view)] += 1
        super().register_host_pool(view)

    @hookimpl
    def unregister_host_pool(self, view: HostPoolView) -> None:
        """Counted and handed on."""
        self._less(self.pools, id(view))
        super().unregister_host_pool(view)

    def _less(self, lent: Counter[T], what: T) -> None:
        if not lent[what]:
            self.strange.append(what)
        lent[what] -= 1
        if lent[what] <= 0:
            del lent[what]


def _place(buffer: Buffer) -> tuple[int, int]:
    view = np.frombuffer(buffer, np.uint8)
    return view.ctypes.data, view.nbytes
