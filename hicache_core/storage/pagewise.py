"""Seals of a call, stamped and judged for the whole batch, or page by page at the store's word.

Beyond the processor's cache, hashing a page costs as much as copying half of it; right before or after the copy it
costs a quarter of that. A hook marked `pagewise` therefore says when it comes to a page. It is believed in nothing
else: what it never had judged is judged when it has returned, and a page that it stored unsealed is a violation of
the contract. Not for v2 calls: the indices would be those of one pool's part.

A caller that has stopped waiting may have other bytes in its memory by now, which must not be sealed as the page.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hicache_core.errors import StorageError
from hicache_core.seal import SEAL_BYTES, Sealer
from hicache_core.storage.answers import ContractViolation
from hicache_core.storage.guard import SealedBatch
from hicache_core.storage.handles import Call
from hicache_core.types import Outcome

HIT = Outcome.HIT
_NO_SEAL = bytes(SEAL_BYTES)


class GivenUp(StorageError):
    """Ends a set call inside the store: its caller has stopped waiting, and its memory may hold other pages."""


class PageSeals:
    """Stamps the pages of one set call: `seal` at the store's word, `seal_all` before it."""

    def __init__(self, sealer: Sealer, sealed: SealedBatch, call: Call) -> None:
        self._sealer, self._sealed, self._call = sealer, sealed, call
        self._prepared = sealed.prepared(sealer)
        self._stamped = bytearray(len(sealed.batch))

    def seal_all(self) -> None:
        """For a store that does not call back."""
        self._sealer.stamp_batch(self._sealed.batch.keys, self._sealed.full, self._prepared)

    def seal(self, index: int) -> None:
        """One page. Raises GivenUp, and leaves no seal, where it was abandoned before all of it was hashed."""
        page = self._sealed.full[index]
        self._sealer.stamp_page(self._prepared[index], page)
        if self._call.abandoned:
            page[0][:SEAL_BYTES] = _NO_SEAL
            raise GivenUp("nobody waits for this set any more, and its memory may hold other pages by now")
        self._stamped[index] = 1

    def checked(self, hook: str, issue: Callable[[int, int], list[Outcome]]) -> Callable[[int, int], list[Outcome]]:
        """`issue`, which raises ContractViolation where a page was stored that had not been sealed."""

        def issue_checked(lo: int, hi: int) -> list[Outcome]:
            try:
                outcomes = issue(lo, hi)
            except GivenUp:
                return [Outcome.TIMEOUT] * (hi - lo)
            if self._call.abandoned:
                return outcomes
            for index, outcome in enumerate(outcomes, lo):
                if outcome is Outcome.STORED and not self._stamped[index]:
                    raise ContractViolation(hook, f"stored page {index - lo} without calling ctx.seal_page for it")
            return outcomes

        return issue_checked


class PageVerdicts:
    """Judges the pages of one get call."""

    def __init__(self, sealer: Sealer, sealed: SealedBatch, call: Call) -> None:
        self._sealer, self._sealed, self._call = sealer, sealed, call
        self._prepared = sealed.prepared(sealer)
        self._verdicts: list[Outcome | None] = [None] * len(sealed.batch)

    def verify(self, index: int) -> None:
        """Judge one page, at the store's word; nobody wants to know once the waiter has gone."""
        if not self._call.abandoned:
            self._verdicts[index] = self._sealer.check_page(self._prepared[index], self._sealed.full[index])

    def outcomes(self, told: Sequence[Outcome]) -> list[Outcome]:
        """What the store told, with the verdict in the place of every HIT; pages not yet judged are judged now."""
        verdicts = self._verdicts
        for i, outcome in enumerate(told):
            if outcome is HIT and verdicts[i] is None:
                verdicts[i] = self._sealer.check_page(self._prepared[i], self._sealed.full[i])
        return [
            verdict if outcome is HIT and verdict is not None else outcome
            for outcome, verdict in zip(told, verdicts, strict=True)
        ]
