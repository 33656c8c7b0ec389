"""set, set_v1 and set_v2 of at most 128 pages: encode, seal, store; poisoned keys are healed on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hicache_core.storage.answers import checked_outcomes
from hicache_core.storage.batches import PageBatch
from hicache_core.storage.calls import StoreCalls
from hicache_core.storage.damage import READ_PAUSE_SECONDS
from hicache_core.storage.guard import Guard, SealedBatch, issuer
from hicache_core.storage.handles import Call
from hicache_core.storage.pagewise import PageSeals
from hicache_core.storage.seals import SealRing
from hicache_core.storage.staging import StageBlock, Staging, copy_page
from hicache_core.types import IoContext, Outcome, Page

CORRUPT, FOREIGN, REJECTED = Outcome.CORRUPT, Outcome.FOREIGN, Outcome.REJECTED
GONE = (Outcome.HIT, Outcome.MISS)


class Writer:
    """The write direction of a session. `ring`, `staging`: its memory."""

    def __init__(self, guard: Guard, calls: StoreCalls, ring: SealRing | None, staging: Staging) -> None:
        self._guard, self._calls, self._ring, self._staging = guard, calls, ring, staging

    def write(self, call: Call, hook: str, batch: PageBatch, ctx: IoContext) -> list[Outcome]:
        """One outcome per page.

        FOREIGN: the key holds somebody else's page, which stays. CORRUPT: it holds a damaged page that may not
        or cannot be healed. REJECTED also where ctx.replace asks for what the store cannot do.
        """
        seals = None if self._ring is None else self._ring.borrow()
        try:
            slots = None if seals is None else seals.slots
            if not self._guard.damage.any and not ctx.replace and self._guard.capabilities.max_page_bytes is None:
                return self._store(call, hook, batch, slots, ctx)
            return self._sorted_out(call, hook, batch, slots, ctx)
        finally:
            if seals is not None and self._ring is not None:
                self._ring.give_back(seals)

    def staged_sizes(self, batch: PageBatch) -> list[int] | None:
        """Bytes of memory beside the pools that each page takes on its way; None where it goes straight."""
        chain = self._guard.chain
        if not chain:
            return None
        return [self._staging.padded(chain.sizes(nbytes)[-1]) for nbytes in batch.sizes]

    def _sorted_out(
        self, call: Call, hook: str, batch: PageBatch, seals: Sequence[memoryview] | None, ctx: IoContext
    ) -> list[Outcome]:
        """As `write`, where some pages may not go the common way."""
        damage = self._guard.damage
        outcomes: list[Outcome] = [REJECTED] * len(batch)
        common: list[int] = []
        torn: list[int] = []
        first_of: dict[str, int] = {}
        for i, key in enumerate(batch.keys):
            if self._too_large(batch.sizes[i]):
                continue
            if damage.is_foreign(key):
                outcomes[i] = FOREIGN
            elif damage.is_poisoned(key):
                first_of.setdefault(key, i)
                torn.append(i)
            else:
                common.append(i)
        if common:
            put = self._replace if ctx.replace else self._store
            answer = put(call, hook, batch.take(common), _some(seals, common), ctx)
            for i, outcome in zip(common, answer, strict=True):
                outcomes[i] = outcome
        if torn and not call.abandoned:
            once = sorted(first_of.values())
            answer = self._heal(call, batch.take(once), _some(seals, once), ctx)
            healed = dict(zip((batch.keys[i] for i in once), answer, strict=True))
            for i in torn:
                outcomes[i] = healed[batch.keys[i]]
        return outcomes

    def _heal(
        self, call: Call, batch: PageBatch, seals: Sequence[memoryview] | None, ctx: IoContext
    ) -> list[Outcome]:
        """Put good bytes in the place of damaged ones, within the budget."""
        guard = self._guard
        outcomes = [CORRUPT] * len(batch)
        if not guard.heal or not self._can_replace:
            guard.ledger.event("heals_impossible", len(batch))
            return outcomes
        allowed = []
        for i in range(len(batch)):
            if not guard.damage.may_heal():
                guard.ledger.event("heals_refused", len(batch) - i)
                guard.read_breaker.force_open(READ_PAUSE_SECONDS, guard.damage.refused)
                break
            allowed.append(i)
        if not allowed:
            return outcomes
        some = batch.take(allowed)
        answer = self._replace(call, "batch_set", some, _some(seals, allowed), ctx)
        if guard.capabilities.replace:  # EXISTS would mean that the damaged bytes are still there
            answer = [CORRUPT if outcome is Outcome.EXISTS else outcome for outcome in answer]
        good = [key for key, outcome in zip(some.keys, answer, strict=True) if outcome.success]
        if not call.abandoned:
            guard.damage.forgive(good)
        guard.ledger.event("heals", len(good))
        for i, outcome in zip(allowed, answer, strict=True):
            outcomes[i] = outcome
        return outcomes

    @property
    def _can_replace(self) -> bool:
        return self._guard.capabilities.replace or self._guard.capabilities.delete == "immediate"

    def _replace(
        self, call: Call, hook: str, batch: PageBatch, seals: Sequence[memoryview] | None, ctx: IoContext
    ) -> list[Outcome]:
        """Store over what is there: by ctx.replace, or by delete and set."""
        capabilities = self._guard.capabilities
        if capabilities.replace:
            return self._store(call, hook, batch, seals, replace(ctx, replace=True))
        if capabilities.delete != "immediate":
            return [REJECTED] * len(batch)

        def delete(lo: int, hi: int) -> list[Outcome]:
            answer = self._guard.dispatch.call("delete", keys=batch.keys[lo:hi], ctx=ctx)
            return checked_outcomes(answer, hi - lo, "delete", "delete")

        outcomes = self._calls.outcomes(call, "delete", len(batch), delete)
        gone = [i for i, outcome in enumerate(outcomes) if outcome in GONE]
        if call.abandoned:
            return outcomes
        outcomes = [Outcome.UNAVAILABLE] * len(batch)
        if gone:
            answer = self._store(call, hook, batch.take(gone), _some(seals, gone), replace(ctx, replace=False))
            for i, outcome in zip(gone, answer, strict=True):
                outcomes[i] = outcome
        return outcomes

    def _store(
        self, call: Call, hook: str, batch: PageBatch, seals: Sequence[memoryview] | None, ctx: IoContext
    ) -> list[Outcome]:
        """Encode, seal, store."""
        guard = self._guard
        stage: StageBlock | None = None
        try:
            if guard.chain:
                hook = "batch_set"
                try:
                    pages = guard.chain.encode(ctx, batch.keys, batch.pages)
                except BaseException as error:  # noqa: BLE001 - a page that cannot be encoded is not stored
                    guard.ledger.exception("transform encode", error)
                    return [Outcome.UNAVAILABLE] * len(batch)
                sizes = [sum(buffer.nbytes for buffer in page) for page in pages]
                if guard.capabilities.registration == "region":
                    stage, pages = self._staged(pages, sizes)
                batch = replace(batch, pages=pages, sizes=sizes, slots=None, pools=())
            sealed = SealedBatch(batch, seals)
            stamps = None if guard.sealer is None else PageSeals(guard.sealer, sealed, call)
            if stamps is not None and hook in guard.pagewise:
                issue = stamps.checked(hook, issuer(guard, hook, "set", sealed, ctx, at_page=stamps.seal))
            else:
                issue = issuer(guard, hook, "set", sealed, ctx)
                if stamps is not None:
                    stamps.seal_all()
            if call.abandoned:
                return [Outcome.TIMEOUT] * len(batch)
            return self._calls.outcomes(call, hook, len(batch), issue)
        finally:
            if stage is not None:
                self._staging.give_back(stage)

    def _staged(self, pages: Sequence[Page], sizes: Sequence[int]) -> tuple[StageBlock, Sequence[Page]]:
        """The encoded pages in memory that is registered with the store."""
        stage = self._staging.borrow(sum(map(self._staging.padded, sizes)))
        staged = []
        for page, nbytes in zip(pages, sizes, strict=True):
            target = [stage.take(nbytes)]
            copy_page(target, page)
            staged.append(target)
        return stage, staged

    def _too_large(self, nbytes: int) -> bool:
        most = self._guard.capabilities.max_page_bytes
        return most is not None and not self._guard.chain and nbytes + self._guard.stride > most


def _some(seals: Sequence[memoryview] | None, indices: Sequence[int]) -> Sequence[memoryview] | None:
    return None if seals is None else [seals[i] for i in indices]
