"""The data path: an operation becomes calls for workers, and a handle that joins their answers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from itertools import chain as joined
from typing import Any

import numpy as np

from hicache_core.errors import MisuseError
from hicache_core.storage.batches import CutRule, PageBatch, slices
from hicache_core.storage.calls import ExistsAnswer
from hicache_core.storage.handles import Call, Handle
from hicache_core.storage.parts import Parts
from hicache_core.storage.queries import NOTHING
from hicache_core.storage.workers import WorkerGroup
from hicache_core.types import (
    IoContext,
    Outcome,
    PoolHitPolicy,
    PoolName,
    PoolTransfer,
    PoolTransferResult,
)

_log = logging.getLogger(__name__)
_REASON = {Outcome.TIMEOUT: "timeout", Outcome.CANCELLED: "cancelled"}


class ExistsHandle(Handle[Any]):
    """The handle of a query: `result` is the count, `reason` says why the run ended."""

    def answer(self, timeout: float | None = None) -> ExistsAnswer:
        """Count and reason, waiting as `result` does."""
        self.wait(timeout)
        answer: ExistsAnswer = self._value
        return answer

    def result(self, timeout: float | None = None) -> int:
        """How many pages from the start are there."""
        return self.answer(timeout).count

    @property
    def reason(self) -> str:
        """Why the run ended; empty where every page is there, or while the answer is not."""
        return self._value.reason if self._done.is_set() else ""


def _as_they_are(outcomes: list[Outcome]) -> list[Outcome]:
    return outcomes


class Operations:
    """The data path of one session."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        capabilities = parts.guard.capabilities
        chain = parts.guard.chain
        self._straight = not chain or chain.in_place
        self._patient = parts.settings.lent_pools and capabilities.zero_copy_v1 and self._straight
        self._rule = CutRule(parts.guard.stride, capabilities.call_bytes)
        self._staged_rule = CutRule(parts.guard.stride, capabilities.call_bytes, parts.settings.stage_bytes)
        self._here = capabilities.nonblocking
        """Whoever waits for a call may run it: the store never waits, and nobody needs to be able to give up."""
        self._parallelism = capabilities.parallelism
        self._spread = capabilities.spread and not self._here
        """A store that never waits computes with the GIL held, so that a second thread would be in the way."""
        self._groups_warned = False

    # -- queries

    def exists(
        self,
        hashes: Sequence[str],
        pool: str,
        timeout: float | None,
        prefix: Sequence[str] | None,
        *,
        watched: bool = True,
    ) -> ExistsHandle:
        """A query; see StorageSession.submit_exists. watched: nobody may be waiting for it."""
        parts, damage = self._parts, self._parts.guard.damage
        keys = parts.schema.physical(hashes, pool)
        asked, stop = len(keys), ""
        if damage.any:
            good, stop = damage.first_bad(keys)
            keys = keys[:good]
        if not keys:
            return self._known(ExistsAnswer(0, stop), asked)
        if parts.read_group.breaker.blocked:
            return self._known(ExistsAnswer(0, "breaker_open"), asked)
        deadline = parts.deadline(timeout)
        ctx = self._context(deadline)
        if prefix is not None:
            ctx.prefix_keys = parts.schema.physical(prefix, pool)

        def work(call: Call) -> ExistsAnswer:
            answer = parts.query.run(call, keys, ctx)
            return answer if answer.reason else ExistsAnswer(answer.count, stop)

        def combine(answers: list[ExistsAnswer]) -> ExistsAnswer:
            parts.ledger.exists(asked, answers[0].count)
            return answers[0]

        call = Call(work, lambda outcome, _: ExistsAnswer(0, _REASON.get(outcome, "unavailable")))
        handle = ExistsHandle([call], combine, deadline, parts.clock)
        self._go(parts.read_group, handle, deadline, watched)
        return handle

    def contains(self, hashes: Sequence[str], pool: str, timeout: float | None) -> Handle[list[bool]]:
        """See StorageSession.submit_contains."""
        parts = self._parts
        keys = parts.schema.physical(hashes, pool)
        if not keys or parts.read_group.breaker.blocked:
            return Handle.answered([False] * len(keys), parts.clock)
        deadline = parts.deadline(timeout)
        ctx = self._context(deadline)
        call = Call(lambda call: parts.query.flags(call, keys, ctx), lambda *_: [False] * len(keys))
        handle: Handle[list[bool]] = Handle([call], lambda answers: answers[0], deadline, parts.clock)
        self._go(parts.read_group, handle, deadline, True)
        return handle

    def exists_v2(
        self, hashes: Sequence[str], queries: Sequence[PoolTransfer], timeout: float | None
    ) -> Handle[PoolTransferResult]:
        """See StorageSession.submit_exists_v2."""
        parts = self._parts
        _check_transfers(queries)
        for query in queries:
            if len(query.keys) != len(hashes):
                raise MisuseError(f"pool {query.name}: {len(query.keys)} hashes for a prefix of {len(hashes)} pages")
        keys = parts.schema.physical(hashes)
        if not keys or parts.read_group.breaker.blocked or self._has_groups(queries):
            return Handle.answered(NOTHING, parts.clock)
        transfers = [
            PoolTransfer(q.name, parts.schema.physical(q.keys, q.name.value), None, q.policy, q.trailing)
            for q in queries
        ]
        deadline = parts.deadline(timeout)
        ctx = self._context(deadline)
        call = Call(lambda call: parts.query.prefixes(call, keys, transfers, ctx), lambda *_: NOTHING)
        handle: Handle[PoolTransferResult] = Handle([call], lambda answers: answers[0], deadline, parts.clock)
        self._go(parts.read_group, handle, deadline, True)
        return handle

    # -- pages

    def get(
        self,
        hook: str,
        batch: PageBatch,
        timeout: float | None,
        priority: int,
        *,
        shape: Callable[[list[Outcome]], Any] = _as_they_are,
        watched: bool = True,
    ) -> Handle[Any]:
        """Read; hook: batch_get, batch_get_v1 or batch_get_v2. shape: what the answer is made of the outcomes."""
        parts = self._parts
        patient = self._patient and hook != "batch_get"
        lent = parts.settings.lent_pools and not patient
        if lent or not self._straight:
            hook, batch.slots, batch.pools = "batch_get", None, ()
        deadline = parts.deadline(timeout)
        ctx = self._context(deadline, priority)

        def once(call: Call, part: PageBatch) -> list[Outcome]:
            return parts.reader.read(call, hook, part, ctx, lent=lent)

        staged = parts.reader.staged_sizes(batch, lent=lent)
        group = parts.read_group
        return self._pages("get", group, batch, once, staged, deadline, shape, patient=patient, watched=watched)

    def set(
        self,
        hook: str,
        batch: PageBatch,
        replace: bool,
        timeout: float | None,
        priority: int,
        *,
        shape: Callable[[list[Outcome]], Any] = _as_they_are,
        watched: bool = True,
    ) -> Handle[Any]:
        """Write; hook: batch_set, batch_set_v1 or batch_set_v2. shape: as in get."""
        parts = self._parts
        deadline = parts.deadline(timeout)
        ctx = self._context(deadline, priority)
        ctx.replace = replace

        def once(call: Call, part: PageBatch) -> list[Outcome]:
            return parts.writer.write(call, hook, part, ctx)

        staged = parts.writer.staged_sizes(batch)
        return self._pages("set", parts.write_group, batch, once, staged, deadline, shape, watched=watched)

    def get_v2(
        self, transfers: Sequence[PoolTransfer], timeout: float | None, priority: int
    ) -> Handle[dict[PoolName, list[Outcome]]]:
        """See StorageSession.submit_get_v2."""
        batch = self._flat(transfers)
        return self.get("batch_get_v2", batch, timeout, priority, shape=_by_pool(transfers, Outcome.HIT))

    def set_v2(
        self, transfers: Sequence[PoolTransfer], timeout: float | None, priority: int
    ) -> Handle[dict[PoolName, list[Outcome]]]:
        """See StorageSession.submit_set_v2."""
        batch = self._flat(transfers)
        shape = _by_pool(transfers, Outcome.EXISTS)
        return self.set("batch_set_v2", batch, False, timeout, priority, shape=shape)

    # -- how an operation is cut, spread and sent

    def _pages(
        self,
        operation: str,
        group: WorkerGroup,
        batch: PageBatch,
        once: Callable[[Call, PageBatch], list[Outcome]],
        staged: Sequence[int] | None,
        deadline: float,
        shape: Callable[[list[Outcome]], Any],
        *,
        patient: bool = False,
        watched: bool,
    ) -> Handle[Any]:
        parts = self._parts
        total = len(batch)
        if not total:
            return Handle.answered(shape([]), parts.clock)
        if group.breaker.blocked:
            parts.ledger.event("breaker_refused", total)
            outcomes = [Outcome.UNAVAILABLE] * total
            parts.ledger.pages(operation, outcomes)
            return Handle.answered(shape(outcomes), parts.clock)
        rule = self._rule if staged is None else self._staged_rule
        sizes = batch.sizes
        calls = []
        for lo, hi in slices(sizes, group.count, self._parallelism, spread=self._spread):
            own_staged = None if staged is None else staged[lo:hi]
            calls.append(_page_call(batch.cut(lo, hi), once, rule, own_staged, patient))

        def combine(answers: list[list[Outcome]]) -> Any:
            outcomes = answers[0] if len(answers) == 1 else list(joined.from_iterable(answers))
            parts.ledger.pages(operation, outcomes, _moved(outcomes, sizes))
            return shape(outcomes)

        handle: Handle[Any] = Handle(calls, combine, deadline, parts.clock)
        self._go(group, handle, deadline, watched)
        return handle

    def _flat(self, transfers: Sequence[PoolTransfer]) -> PageBatch:
        """All pages of all pools that have bytes, pool after pool."""
        parts = self._parts
        _check_transfers(transfers)
        flat = PageBatch([], [], [], np.empty(0, np.int64), [], [])
        for transfer in transfers:
            if transfer.slots is None:
                continue
            batch = parts.pool_batch(transfer.name, transfer.keys, transfer.slots)
            if len(batch):
                flat = PageBatch(
                    [*flat.keys, *batch.keys],
                    [*flat.pages, *batch.pages],
                    [*flat.sizes, *batch.sizes],
                    np.concatenate([flat.slots, batch.slots]),
                    [*flat.pools, (transfer.name, len(batch))],
                    [flat.owner, batch.owner],
                )
        return flat

    def _go(self, group: WorkerGroup, handle: Handle[Any], deadline: float, watched: bool) -> None:
        if self._here and not watched and len(handle.calls) == 1 and group.run_here(handle.calls[0]):
            return
        for call in handle.calls:
            group.submit(call)
        if watched:
            self._parts.keeper.watch(handle, deadline)

    def _known(self, answer: ExistsAnswer, asked: int) -> ExistsHandle:
        self._parts.ledger.exists(asked, answer.count)
        return ExistsHandle([], lambda _: answer, None, self._parts.clock)

    def _context(self, deadline: float, priority: int = 0) -> IoContext:
        return IoContext(deadline, priority, self._parts.identity.tenant)

    def _has_groups(self, queries: Sequence[PoolTransfer]) -> bool:
        groups = [query.name for query in queries if query.policy is PoolHitPolicy.BLOCK_GROUPS]
        if groups and not self._groups_warned:
            self._groups_warned = True
            _log.warning("hit policy block_groups of pool %s is not supported: no hits", groups[0])
        return bool(groups)


def _page_call(
    batch: PageBatch,
    once: Callable[[Call, PageBatch], list[Outcome]],
    rule: CutRule,
    staged: Sequence[int] | None,
    patient: bool,
) -> Call:
    total = len(batch)

    def work(call: Call) -> list[Outcome]:
        done: list[Outcome] = []
        for lo, hi in rule.cuts(batch.sizes, staged):
            outcomes = once(call, batch.cut(lo, hi))
            done = done + outcomes if done else outcomes
            if len(done) == total or not call.publish(done):
                break
        return done

    def given_up(outcome: Outcome, partial: list[Outcome] | None) -> list[Outcome]:
        done = partial or []
        return done + [outcome] * (total - len(done))

    return Call(work, given_up, patient=patient)


def _moved(outcomes: Sequence[Outcome], sizes: Sequence[int]) -> int:
    first = outcomes[0]
    if outcomes.count(first) == len(outcomes):
        return sum(sizes) if first.success else 0
    return sum(size for outcome, size in zip(outcomes, sizes, strict=True) if outcome.success)


def _check_transfers(transfers: Sequence[PoolTransfer]) -> None:
    names = [transfer.name for transfer in transfers]
    if len(set(names)) != len(names):
        raise MisuseError(f"more than one transfer for a pool in one call: {', '.join(map(str, names))}")


def _by_pool(
    transfers: Sequence[PoolTransfer], without_bytes: Outcome
) -> Callable[[list[Outcome]], dict[PoolName, list[Outcome]]]:
    """Turns the outcomes of all pages, pool after pool, into those of each pool."""

    def split(outcomes: list[Outcome]) -> dict[PoolName, list[Outcome]]:
        answers, start = {}, 0
        for transfer in transfers:
            count = len(transfer.keys)
            if transfer.slots is None:
                answers[transfer.name] = [without_bytes] * count
            else:
                answers[transfer.name] = outcomes[start : start + count]
                start += count
        return answers

    return split
