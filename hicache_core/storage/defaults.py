"""What the core does for hooks that a backend leaves out.

Each default calls the backend object itself, beneath the guard: an operation is guarded, counted and sealed once,
at the method that was called.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hicache_core.plugin.spec import hookimpl
from hicache_core.storage.answers import checked_flags, checked_run
from hicache_core.storage.binding import HookBinding
from hicache_core.storage.prefixes import prefixes_over_pools
from hicache_core.types import IoContext, Outcome, PoolName, PoolTransfer, PoolTransferResult


class Defaults:
    """batch_contains, v1 and v2 over batch_exists, batch_get and batch_set."""

    def __init__(self, backend: HookBinding) -> None:
        self._backend = backend

    @hookimpl(trylast=True)
    def batch_contains(self, keys: Sequence[str], ctx: IoContext) -> list[bool]:
        """Walk by runs of batch_exists."""
        return contains_by_runs(keys, lambda some: self._run_of(some, ctx))

    @hookimpl(trylast=True)
    def batch_get_v1(self, keys: Sequence[str], ctx: IoContext) -> Any:
        """batch_get into `ctx.pages`."""
        return self._backend.call("batch_get", keys=keys, pages=ctx.pages, ctx=ctx)

    @hookimpl(trylast=True)
    def batch_set_v1(self, keys: Sequence[str], ctx: IoContext) -> Any:
        """batch_set from `ctx.pages`."""
        return self._backend.call("batch_set", keys=keys, pages=ctx.pages, ctx=ctx)

    @hookimpl(trylast=True)
    def batch_exists_v2(
        self, keys: Sequence[str], pool_transfers: Sequence[PoolTransfer], ctx: IoContext
    ) -> PoolTransferResult:
        """Every restorable prefix, by runs for pools that need all pages and by key for windows."""
        return prefixes_over_pools(
            keys, pool_transfers, lambda some: self._run_of(some, ctx), lambda some: self._contains(some, ctx)
        )

    @hookimpl(trylast=True)
    def batch_get_v2(self, transfers: Sequence[PoolTransfer], ctx: IoContext) -> dict[PoolName, list[Outcome]]:
        """One batch_get per pool."""
        return self._pool_by_pool("batch_get", transfers, ctx)

    @hookimpl(trylast=True)
    def batch_set_v2(self, transfers: Sequence[PoolTransfer], ctx: IoContext) -> dict[PoolName, list[Outcome]]:
        """One batch_set per pool."""
        return self._pool_by_pool("batch_set", transfers, ctx)

    def _pool_by_pool(
        self, hook: str, transfers: Sequence[PoolTransfer], ctx: IoContext
    ) -> dict[PoolName, list[Outcome]]:
        answers = {}
        for transfer in transfers:
            pool_ctx = context_of_pool(ctx, transfer.name)
            answers[transfer.name] = self._backend.call(hook, keys=transfer.keys, pages=pool_ctx.pages, ctx=pool_ctx)
        return answers

    def _run_of(self, keys: Sequence[str], ctx: IoContext) -> int:
        return checked_run(self._backend.call("batch_exists", keys=keys, ctx=ctx), len(keys))

    def _contains(self, keys: Sequence[str], ctx: IoContext) -> list[bool]:
        answer = self._backend.call("batch_contains", keys=keys, ctx=ctx)
        return self.batch_contains(keys, ctx) if answer is None else checked_flags(answer, len(keys))


def contains_by_runs(keys: Sequence[str], run_of: Callable[[Sequence[str]], int]) -> list[bool]:
    """One bool per key from runs: one key after an empty run, twice as many after a full one."""
    present: list[bool] = []
    step = max(1, len(keys))
    while len(present) < len(keys):
        asked = keys[len(present) : len(present) + step]
        run = run_of(asked)
        present += [True] * run
        if run == len(asked):
            step *= 2
            continue
        present.append(False)
        if not run:
            step = 1
    return present


def context_of_pool(ctx: IoContext, name: PoolName) -> IoContext:
    """The context of a v2 call, narrowed to one pool."""
    seals = ctx.seals.get(name) if isinstance(ctx.seals, Mapping) else None
    pages = ctx.pages.get(name) if isinstance(ctx.pages, Mapping) else None
    return dataclasses.replace(ctx, seals=seals, pages=pages, lengths=None)
