"""The backend `fault`: seeded faults around any other backend.

Whether a fault strikes is drawn from (seed, fault, what is called, how often it was called so): the same calls
give the same faults on any number of threads, and two keys do not influence each other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from xxhash import xxh3_64_intdigest

from hicache_core.errors import StorageError
from hicache_core.plugin.select import open_backend
from hicache_core.plugin.spec import hookimpl
from hicache_core.storage.answers import checked_run
from hicache_core.storage.binding import HookBinding
from hicache_core.storage.defaults import contains_by_runs, context_of_pool
from hicache_core.storage.fault_options import FaultOptions, inner_choice, without_broken
from hicache_core.types import (
    Capabilities,
    HostPoolView,
    IoContext,
    OpenContext,
    Outcome,
    Page,
    PoolName,
    PoolTransfer,
    PoolTransferResult,
    Slots,
)

FILLING = 0xAA
"""What stands where the end of a page is missing."""


class InjectedFault(StorageError):
    """A call that `fault` made fail."""


def open_fault(options: FaultOptions, ctx: OpenContext) -> FaultBackend:
    """The factory."""
    choice = inner_choice(options)
    inner = open_backend(choice, ctx)
    narrowed = getattr(inner, "capabilities", None)
    declared = narrowed if isinstance(narrowed, Capabilities) else choice.capabilities
    return FaultBackend(HookBinding(inner), options, without_broken(declared, options))


class Dice:
    """Draws that depend on the seed, a name and its count only. Thread-safe."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._counts: dict[str, int] = {}
        self._lock = threading.Lock()

    def draw(self, name: str) -> int:
        """64 bits for the next use of this name."""
        with self._lock:
            count = self._counts.get(name, 0)
            self._counts[name] = count + 1
        return xxh3_64_intdigest(f"{self._seed}:{count}:{name}".encode())

    def strikes(self, chance: float, name: str) -> bool:
        """Whether it happens this time. Names without a chance are not counted."""
        return chance > 0 and self.draw(name) < chance * 2**64


class FaultBackend:
    """Hooks that call the inner backend's, and spoil some of it."""

    def __init__(self, inner: HookBinding, options: FaultOptions, capabilities: Capabilities) -> None:
        self._inner, self._options = inner, options
        self.capabilities = capabilities
        self._dice = Dice(options.seed)
        self._closing = threading.Event()
        self._spoils_sets = options.damages and options.at == "set"
        self._spoils_gets = options.damages and options.at == "get"

    @hookimpl
    def batch_exists(self, keys: Sequence[str], ctx: IoContext) -> int:
        """The inner run, lengthened by pages that are not there."""
        self._before("batch_exists", keys)
        return self._run(keys, ctx)

    @hookimpl
    def batch_contains(self, keys: Sequence[str], ctx: IoContext) -> list[bool]:
        """The inner answer, with pages that are not there."""
        self._before("batch_contains", keys)
        flags = self._inner.call("batch_contains", keys=keys, ctx=ctx)
        if flags is None:
            return contains_by_runs(keys, lambda some: self._run(some, ctx))
        return [there or self._is_stale(key) for there, key in zip(flags, keys, strict=True)]

    @hookimpl
    def batch_get(self, keys: Sequence[str], pages: Sequence[Page], ctx: IoContext) -> Any:
        """The inner pages, some of them spoilt."""
        self._before("batch_get", keys)
        outcomes = self._inner.call("batch_get", keys=keys, pages=pages, ctx=ctx)
        return self._spoilt(keys, pages, outcomes)

    @hookimpl
    def batch_set(self, keys: Sequence[str], pages: Sequence[Page], ctx: IoContext) -> Any:
        """Store the pages; some of them spoilt, with at=set."""
        self._before("batch_set", keys)
        if self._spoils_sets:
            pages = self._spoilt_copies(keys, pages)
        return self._inner.call("batch_set", keys=keys, pages=pages, ctx=ctx)

    @hookimpl
    def batch_get_v1(self, keys: Sequence[str], host_indices: Slots, ctx: IoContext) -> Any:
        """Native where the inner one is; spoilt in place."""
        if "batch_get_v1" not in self._inner:
            return None
        self._before("batch_get_v1", keys)
        outcomes = self._inner.call("batch_get_v1", keys=keys, host_indices=host_indices, ctx=ctx)
        if outcomes is None or not isinstance(ctx.pages, Sequence):
            return outcomes
        return self._spoilt(keys, ctx.pages, outcomes)

    @hookimpl
    def batch_set_v1(self, keys: Sequence[str], host_indices: Slots, ctx: IoContext) -> Any:
        """Native where the inner one is and nothing is to be spoilt."""
        if self._spoils_sets or "batch_set_v1" not in self._inner:
            return None
        self._before("batch_set_v1", keys)
        return self._inner.call("batch_set_v1", keys=keys, host_indices=host_indices, ctx=ctx)

    @hookimpl
    def batch_exists_v2(
        self, keys: Sequence[str], pool_transfers: Sequence[PoolTransfer], ctx: IoContext
    ) -> PoolTransferResult | None:
        """Native where the inner one is and no stale page is to be invented."""
        if self._options.stale_exists or "batch_exists_v2" not in self._inner:
            return None
        self._before("batch_exists_v2", keys)
        found: PoolTransferResult | None = self._inner.call(
            "batch_exists_v2", keys=keys, pool_transfers=pool_transfers, ctx=ctx
        )
        return found

    @hookimpl
    def batch_get_v2(self, transfers: Sequence[PoolTransfer], ctx: IoContext) -> Any:
        """Native where the inner one is; spoilt in place."""
        if "batch_get_v2" not in self._inner:
            return None
        self._before("batch_get_v2", _keys_of(transfers))
        answer = self._inner.call("batch_get_v2", transfers=transfers, ctx=ctx)
        if not isinstance(answer, Mapping):
            return answer
        spoilt: dict[PoolName, Any] = {}
        for transfer in transfers:
            pages = context_of_pool(ctx, transfer.name).pages
            outcomes = answer.get(transfer.name)
            can = isinstance(pages, Sequence) and outcomes is not None
            spoilt[transfer.name] = self._spoilt(transfer.keys, pages, outcomes) if can else outcomes  # type: ignore[arg-type]
        return spoilt

    @hookimpl
    def batch_set_v2(self, transfers: Sequence[PoolTransfer], ctx: IoContext) -> Any:
        """Native where the inner one is and nothing is to be spoilt."""
        if self._spoils_sets or "batch_set_v2" not in self._inner:
            return None
        self._before("batch_set_v2", _keys_of(transfers))
        return self._inner.call("batch_set_v2", transfers=transfers, ctx=ctx)

    @hookimpl
    def register_region(self, buffer: memoryview) -> None:
        """Passed on."""
        self._inner.call("register_region", buffer=buffer)

    @hookimpl
    def unregister_region(self, buffer: memoryview) -> None:
        """Passed on."""
        self._inner.call("unregister_region", buffer=buffer)

    @hookimpl
    def register_host_pool(self, view: HostPoolView) -> None:
        """Passed on."""
        self._inner.call("register_host_pool", view=view)

    @hookimpl
    def unregister_host_pool(self, view: HostPoolView) -> None:
        """Passed on."""
        self._inner.call("unregister_host_pool", view=view)

    @hookimpl
    def allocate_host_memory(self, nbytes: int, alignment: int) -> Any:
        """Passed on."""
        return self._inner.call("allocate_host_memory", nbytes=nbytes, alignment=alignment)

    @hookimpl
    def delete(self, keys: Sequence[str], ctx: IoContext) -> Any:
        """May fail, wait or stall."""
        if "delete" not in self._inner:
            return None
        self._before("delete", keys)
        return self._inner.call("delete", keys=keys, ctx=ctx)

    @hookimpl
    def clear(self, namespace: str) -> Any:
        """May fail, wait or stall."""
        if "clear" not in self._inner:
            return None
        self._before("clear", [namespace])
        return self._inner.call("clear", namespace=namespace)

    @hookimpl
    def scan(self, namespace: str | None, cursor: str | None) -> Any:
        """May fail, wait or stall."""
        if "scan" not in self._inner:
            return None
        self._before("scan", [namespace or ""])
        return self._inner.call("scan", namespace=namespace, cursor=cursor)

    @hookimpl
    def stats(self) -> Any:
        """Passed on."""
        return self._inner.call("stats")

    @hookimpl
    def close(self) -> None:
        """Let every stalled call go, then close the inner store."""
        self._closing.set()
        self._inner.call("close")

    # -- faults

    def _before(self, hook: str, keys: Sequence[str]) -> None:
        """The faults of a call as a whole. Named by its first key, so that threads do not disturb each other."""
        options, dice = self._options, self._dice
        name = f"{hook}:{keys[0] if keys else ''}"
        if dice.strikes(options.delay, f"delay:{name}"):
            self._wait(options.delay_seconds)
        if dice.strikes(options.stall, f"stall:{name}"):
            self._wait(options.stall_seconds)
        if dice.strikes(options.fail, f"fail:{name}"):
            raise InjectedFault(f"{hook} of {len(keys)} keys was made to fail (seed {options.seed})")

    def _wait(self, seconds: float) -> None:
        if self._closing.wait(seconds):
            raise InjectedFault("the store was closed while a call waited in it")

    def _run(self, keys: Sequence[str], ctx: IoContext) -> int:
        total = 0
        while True:
            rest = keys[total:] if total else keys
            total += checked_run(self._inner.call("batch_exists", keys=rest, ctx=ctx), len(rest))
            if total >= len(keys) or not self._is_stale(keys[total]):
                return total
            total += 1
            if total == len(keys):
                return total

    def _is_stale(self, key: str) -> bool:
        return self._dice.strikes(self._options.stale_exists, f"stale_exists:{key}")

    def _spoilt(self, keys: Sequence[str], pages: Sequence[Page], outcomes: Any) -> Any:
        """Spoil pages that were read, in place; the outcomes stay what the inner store said."""
        if not self._spoils_gets or not isinstance(outcomes, list) or len(outcomes) != len(keys):
            return outcomes
        read = [i for i, outcome in enumerate(outcomes) if outcome is Outcome.HIT]
        for i in read:
            self._reorder(keys[i], pages[i], pages[_neighbour(i, len(keys))] if len(read) == len(keys) > 1 else None)
            if self._dice.strikes(self._options.truncate, f"truncate:{keys[i]}"):
                _overwrite_end(pages[i], self._cut(keys[i], _size(pages[i])))
            if self._dice.strikes(self._options.flip, f"flip:{keys[i]}"):
                _flip(pages[i], self._dice.draw(f"bit:{keys[i]}"))
        return outcomes

    def _spoilt_copies(self, keys: Sequence[str], pages: Sequence[Page]) -> list[Page]:
        """Pages to be stored in the place of these, copied only where they are spoilt."""
        spoilt = [list(page) for page in pages]
        dice, options = self._dice, self._options
        for i, key in enumerate(keys):
            if len(keys) > 1 and dice.strikes(options.reorder, f"reorder:{key}"):
                j = _neighbour(i, len(keys))
                spoilt[i], spoilt[j] = spoilt[j], spoilt[i]
            if dice.strikes(options.truncate, f"truncate:{key}"):
                data = bytearray().join(spoilt[i])
                spoilt[i] = [memoryview(data)[: self._cut(key, len(data))]]
            if dice.strikes(options.flip, f"flip:{key}"):
                data = bytearray().join(spoilt[i])
                spoilt[i] = [memoryview(data)]
                _flip(spoilt[i], dice.draw(f"bit:{key}"))
        return list(spoilt)

    def _reorder(self, key: str, page: Page, other: Page | None) -> None:
        if other is None or not self._dice.strikes(self._options.reorder, f"reorder:{key}"):
            return
        if [len(buffer) for buffer in page] == [len(buffer) for buffer in other]:
            for mine, its in zip(page, other, strict=True):
                kept = bytes(mine)
                mine[:] = its
                its[:] = kept

    def _cut(self, key: str, size: int) -> int:
        """How many bytes are left: fewer than there were."""
        return self._dice.draw(f"cut:{key}") % size if size else 0


def _keys_of(transfers: Sequence[PoolTransfer]) -> Sequence[str]:
    return [key for transfer in transfers for key in transfer.keys]


def _neighbour(i: int, count: int) -> int:
    return i + 1 if i + 1 < count else 0


def _size(page: Page) -> int:
    return sum(map(len, page))


def _pieces(page: Page) -> Callable[[int], tuple[memoryview, int]]:
    """Finds the buffer and the place in it of a byte of the page."""

    def find(at: int) -> tuple[memoryview, int]:
        for buffer in page:
            if at < len(buffer):
                return buffer, at
            at -= len(buffer)
        raise IndexError(at)

    return find


def _flip(page: Page, drawn: int) -> None:
    bits = 8 * _size(page)
    if bits:
        byte, bit = divmod(drawn % bits, 8)
        buffer, at = _pieces(page)(byte)
        buffer[at] ^= 1 << bit


def _overwrite_end(page: Page, kept: int) -> None:
    for buffer in page:
        if kept < len(buffer):
            buffer[kept:] = bytes([FILLING]) * (len(buffer) - kept)
        kept = max(0, kept - len(buffer))
