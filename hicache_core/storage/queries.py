"""exists, contains and exists_v2: hints that vouch for no bytes. Everything here runs on a worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hicache_core.storage.answers import checked_flags, checked_prefixes, checked_run
from hicache_core.storage.calls import ExistsAnswer, StoreCalls
from hicache_core.storage.guard import Guard
from hicache_core.storage.handles import Call
from hicache_core.storage.prefixes import prefixes_over_pools, usable_lengths
from hicache_core.types import BATCH_PAGES, IoContext, PoolTransfer, PoolTransferResult

NOTHING = PoolTransferResult(0, ())


class _Ended(Exception):
    """A step of a query that got no answer; carries the reason."""


@dataclass(slots=True)
class Query:
    """The questions of a session to its store. None of them raises for what the store does."""

    guard: Guard
    calls: StoreCalls

    def run(self, call: Call, keys: Sequence[str], ctx: IoContext) -> ExistsAnswer:
        """The run of existing keys from the start, asked 128 at a time."""
        total = 0
        for lo in range(0, len(keys), BATCH_PAGES):
            part = keys[lo : lo + BATCH_PAGES]
            answer = self._run_once(call, part, ctx)
            total += answer.count
            if answer.reason or call.abandoned:
                return ExistsAnswer(total, answer.reason)
        return ExistsAnswer(total, "")

    def flags(self, call: Call, keys: Sequence[str], ctx: IoContext) -> list[bool]:
        """One bool per key; False for a damaged key, and where the store gave no answer."""
        present: list[bool] = []
        for lo in range(0, len(keys), BATCH_PAGES):
            if call.abandoned:
                break
            present += self._flags_once(call, keys[lo : lo + BATCH_PAGES], ctx)
        damage = self.guard.damage
        if damage.any:
            present = [
                there and not damage.is_poisoned(key) and not damage.is_foreign(key)
                for key, there in zip(keys, present, strict=False)
            ]
        return present + [False] * (len(keys) - len(present))

    def prefixes(
        self, call: Call, keys: Sequence[str], transfers: Sequence[PoolTransfer], ctx: IoContext
    ) -> PoolTransferResult:
        """Every restorable prefix over KV and all pools, without those that need a damaged page."""
        try:
            if len(keys) <= BATCH_PAGES:
                found = self._native_prefixes(call, keys, transfers, ctx)
            else:  # cut into calls, since a window may reach back into the call before
                found = prefixes_over_pools(
                    keys,
                    transfers,
                    lambda some: self._run_or_end(call, some, ctx),
                    lambda some: self.flags(call, some, ctx),
                )
        except _Ended:
            return NOTHING
        return self._without_damaged(found, keys, transfers)

    def _native_prefixes(
        self, call: Call, keys: Sequence[str], transfers: Sequence[PoolTransfer], ctx: IoContext
    ) -> PoolTransferResult:
        hook = "batch_exists_v2"

        def issue() -> PoolTransferResult:
            answer = self.guard.dispatch.call(hook, keys=keys, pool_transfers=transfers, ctx=ctx)
            return checked_prefixes(answer, len(keys), hook)

        reason = self.calls.admitted(call, "batch_exists", lambda: self._ask_run(keys[:1], ctx))
        found = None if reason else self.calls.value(call, hook, issue)
        if found is None:
            raise _Ended(reason or "unavailable")
        return found

    def _without_damaged(
        self, found: PoolTransferResult, keys: Sequence[str], transfers: Sequence[PoolTransfer]
    ) -> PoolTransferResult:
        damage, lengths = self.guard.damage, list(found.restorable or ())
        if damage.any and lengths:
            most = damage.first_bad(keys)[0]
            lengths = [length for length in lengths if length <= most]
            for transfer in transfers:
                good = [not damage.is_poisoned(key) and not damage.is_foreign(key) for key in transfer.keys]
                usable = usable_lengths(transfer, good)
                lengths = [length for length in lengths if length in usable]
        return PoolTransferResult(lengths[-1] if lengths else 0, lengths)

    def _ask_run(self, keys: Sequence[str], ctx: IoContext) -> int:
        return checked_run(self.guard.dispatch.call("batch_exists", keys=keys, ctx=ctx), len(keys))

    def _run_once(self, call: Call, keys: Sequence[str], ctx: IoContext) -> ExistsAnswer:
        return self.calls.run(
            call, "batch_exists", len(keys), lambda n: self._ask_run(keys if n == len(keys) else keys[:n], ctx)
        )

    def _run_or_end(self, call: Call, keys: Sequence[str], ctx: IoContext) -> int:
        answer = self.run(call, keys, ctx)
        if call.abandoned or answer.reason not in ("", "miss"):
            raise _Ended(answer.reason)
        return answer.count

    def _flags_once(self, call: Call, keys: Sequence[str], ctx: IoContext) -> list[bool]:
        def issue(lo: int, hi: int) -> list[bool]:
            answer = self.guard.dispatch.call("batch_contains", keys=keys[lo:hi], ctx=ctx)
            return checked_flags(answer, hi - lo)

        return self.calls.answers(call, "batch_contains", len(keys), issue, False)
