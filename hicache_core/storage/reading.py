"""get, get_v1 and get_v2 of at most 128 pages: read, verify, decode; damaged pages are read twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hicache_core.storage.batches import PageBatch
from hicache_core.storage.calls import StoreCalls
from hicache_core.storage.guard import Guard, SealedBatch, issuer
from hicache_core.storage.handles import Call
from hicache_core.storage.pagewise import PageVerdicts
from hicache_core.storage.seals import SealRing
from hicache_core.storage.staging import StageBlock, Staging, copy_page, shadow
from hicache_core.types import IoContext, Outcome, Page

HIT, CORRUPT, FOREIGN = Outcome.HIT, Outcome.CORRUPT, Outcome.FOREIGN


@dataclass(slots=True)
class _Room:
    """The session's own memory for the pages of one call.

    lanes: for each page the buffers of its form after transform 1 … k, of which the last is read; empty where
    pages are read straight into their place.
    """

    seals: Sequence[memoryview] | None
    lanes: Sequence[Sequence[memoryview]]

    def take(self, indices: Sequence[int]) -> _Room:
        seals = None if self.seals is None else [self.seals[i] for i in indices]
        return _Room(seals, [self.lanes[i] for i in indices] if self.lanes else ())


class Reader:
    """The read direction of a session. `ring`, `staging`: its memory."""

    def __init__(self, guard: Guard, calls: StoreCalls, ring: SealRing | None, staging: Staging) -> None:
        self._guard, self._calls, self._ring, self._staging = guard, calls, ring, staging

    def read(self, call: Call, hook: str, batch: PageBatch, ctx: IoContext, *, lent: bool) -> list[Outcome]:
        """One outcome per page. lent: the destination is written only while the waiter is held off."""
        needs = self.staged_sizes(batch, lent=lent)
        stage = None if needs is None else self._staging.borrow(sum(needs))
        seals = None if self._ring is None else self._ring.borrow()
        try:
            own = batch
            if lent and stage is not None:
                own = replace(batch, pages=shadow(stage, batch.pages))
            room = _Room(None if seals is None else seals.slots, self._lanes(stage, batch))
            outcomes = self._twice(call, hook, own, room, ctx)
            if own is not batch:
                _deliver(call, batch, own, outcomes)
            return outcomes
        finally:
            if stage is not None:
                self._staging.give_back(stage)
            if seals is not None and self._ring is not None:
                self._ring.give_back(seals)

    def staged_sizes(self, batch: PageBatch, *, lent: bool) -> list[int] | None:
        """Bytes of staging that each page takes; None where the pages go straight."""
        chain, padded = self._guard.chain, self._staging.padded
        transformed = bool(chain) and not chain.in_place
        if not lent and not transformed:
            return None
        sizes = []
        for page, nbytes in zip(batch.pages, batch.sizes, strict=True):
            need = sum(padded(buffer.nbytes) for buffer in page) if lent else 0
            if transformed:
                need += sum(map(padded, chain.sizes(nbytes)[1:]))
            sizes.append(need)
        return sizes

    def _lanes(self, stage: StageBlock | None, batch: PageBatch) -> Sequence[Sequence[memoryview]]:
        chain = self._guard.chain
        if stage is None or not chain or chain.in_place:
            return ()
        return [[stage.take(size) for size in chain.sizes(nbytes)[1:]] for nbytes in batch.sizes]

    def _twice(self, call: Call, hook: str, batch: PageBatch, room: _Room, ctx: IoContext) -> list[Outcome]:
        guard, damage = self._guard, self._guard.damage
        outcomes = self._once(call, hook, batch, room, ctx)
        if call.abandoned:
            return outcomes
        damage.pages_read(len(batch))
        if outcomes.count(HIT) == len(batch) and not damage.any:
            return outcomes
        torn = [i for i, outcome in enumerate(outcomes) if outcome is CORRUPT]
        if torn:
            outcomes = self._read_again(call, batch, torn, outcomes, room, ctx)
            if call.abandoned:
                return outcomes
        foreign = [key for key, outcome in zip(batch.keys, outcomes, strict=True) if outcome is FOREIGN]
        if foreign:
            damage.estrange(foreign)
            guard.ledger.event("foreign", len(foreign))
        if damage.any:
            damage.forgive([key for key, outcome in zip(batch.keys, outcomes, strict=True) if outcome is HIT])
        return outcomes

    def _read_again(
        self,
        call: Call,
        batch: PageBatch,
        torn: Sequence[int],
        first: list[Outcome],
        room: _Room,
        ctx: IoContext,
    ) -> list[Outcome]:
        """The outcomes after a second read of the damaged pages; what is damaged again is poisoned."""
        guard = self._guard
        if self._calls.breaker.blocked:
            return first
        guard.ledger.event("retries", len(torn))
        some = replace(batch.take(torn), pools=())
        second = self._once(call, "batch_get", some, room.take(torn), ctx)
        if call.abandoned:
            return first
        outcomes = list(first)
        for i, outcome in zip(torn, second, strict=True):
            outcomes[i] = outcome
        wrong = [key for key, outcome in zip(some.keys, second, strict=True) if outcome is CORRUPT]
        if wrong:
            guard.damage.poison(wrong)
            guard.ledger.event("poisoned", len(wrong))
        return outcomes

    def _once(self, call: Call, hook: str, batch: PageBatch, room: _Room, ctx: IoContext) -> list[Outcome]:
        """Read, verify, decode."""
        chain = self._guard.chain
        reading = batch
        if room.lanes:
            pages = [[lane[-1]] for lane in room.lanes]
            reading = replace(batch, pages=pages, sizes=[page[0].nbytes for page in pages])
        lengths = [0] * len(batch) if chain.variable else None
        sealed = SealedBatch(reading, room.seals)
        verdicts = self._verdicts(call, hook, sealed, lengths)
        issue = issuer(self._guard, hook, "get", sealed, ctx, lengths, verdicts.verify if verdicts else None)
        outcomes = self._calls.outcomes(call, hook, len(batch), issue)
        if call.abandoned:
            return outcomes
        stored = self._payload_lengths(reading, lengths, outcomes)
        if verdicts is not None:
            outcomes = verdicts.outcomes(outcomes)
        else:
            outcomes = self._verify(sealed, outcomes, None if lengths is None else stored)
        if chain and not call.abandoned and HIT in outcomes:
            outcomes = self._decode(batch, room, stored, outcomes, ctx)
        return outcomes

    def _verdicts(self, call: Call, hook: str, sealed: SealedBatch, lengths: list[int] | None) -> PageVerdicts | None:
        """For a store that calls back for each page; a length is known only when it has returned."""
        sealer = self._guard.sealer
        if sealer is None or lengths is not None or hook not in self._guard.pagewise:
            return None
        return PageVerdicts(sealer, sealed, call)

    def _payload_lengths(
        self, reading: PageBatch, lengths: list[int] | None, outcomes: list[Outcome]
    ) -> Sequence[int]:
        """Payload bytes that were stored, per page; marks pages CORRUPT whose length cannot be."""
        if lengths is None:
            return reading.sizes
        stored = []
        for i, (length, most) in enumerate(zip(lengths, reading.sizes, strict=True)):
            payload = length - self._guard.stride
            if outcomes[i] is HIT and not 0 <= payload <= most:
                outcomes[i] = CORRUPT
            stored.append(payload)
        return stored

    def _verify(self, sealed: SealedBatch, outcomes: list[Outcome], stored: Sequence[int] | None) -> list[Outcome]:
        sealer = self._guard.sealer
        hits = outcomes.count(HIT)
        if sealer is None or not hits:
            return outcomes
        keys, full = sealed.batch.keys, sealed.full
        if stored is not None:
            full = [[page[0], page[1][:n]] for page, n in zip(full, stored, strict=True)]
        if hits == len(outcomes):
            prepared = None if stored is not None else sealed.prepared(sealer)
            return sealer.check_batch(keys, full, prepared)
        read = [i for i, outcome in enumerate(outcomes) if outcome is HIT]
        checked = sealer.check_batch([keys[i] for i in read], [full[i] for i in read])
        outcomes = list(outcomes)
        for i, outcome in zip(read, checked, strict=True):
            outcomes[i] = outcome
        return outcomes

    def _decode(
        self, batch: PageBatch, room: _Room, stored: Sequence[int], outcomes: list[Outcome], ctx: IoContext
    ) -> list[Outcome]:
        """Back through the transforms, the last one first."""
        transforms = self._guard.chain.transforms
        decoded, lengths = list(outcomes), list(stored)
        for k in range(len(transforms) - 1, -1, -1):
            src: Sequence[Page] = [[lane[k]] for lane in room.lanes] if room.lanes else batch.pages
            dst: Sequence[Page] = [[lane[k - 1]] for lane in room.lanes] if room.lanes and k else batch.pages
            name = f"transform {transforms[k].identity.name}"
            try:
                answer = transforms[k].decode(ctx, batch.keys, src, lengths, dst, list(decoded))
                if len(answer) != len(batch) or len(lengths) != len(batch):
                    raise ValueError(f"gave {len(answer)} outcomes, {len(lengths)} lengths for {len(batch)} pages")
            except BaseException as error:  # noqa: BLE001 - a page that cannot be decoded is recomputed
                self._guard.ledger.exception(name, error)
                return [Outcome.UNAVAILABLE if outcome is HIT else outcome for outcome in outcomes]
            decoded = [
                old if old is not HIT or new is HIT else CORRUPT for old, new in zip(decoded, answer, strict=True)
            ]
        return [
            CORRUPT if outcome is HIT and length != size else outcome
            for outcome, length, size in zip(decoded, lengths, batch.sizes, strict=True)
        ]


def _deliver(call: Call, batch: PageBatch, own: PageBatch, outcomes: list[Outcome]) -> None:
    """Copy what was read into a pool that is only lent, unless the caller has stopped waiting."""
    with call.committing() as won:
        if won:
            for target, source, outcome in zip(batch.pages, own.pages, outcomes, strict=True):
                if outcome is HIT:
                    copy_page(target, source)
