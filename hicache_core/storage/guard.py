"""Between session and dispatch: seal, transforms and damage. What reading and writing share.

Reading (`reading`): read, verify, decode; what is CORRUPT is read once more, then poisoned. Writing (`writing`):
encode, seal, store; poisoned keys are healed in a call of their own. All of it runs on a worker; a call that was
abandoned does nothing after its hook returned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hicache_core.errors import MisuseError
from hicache_core.seal import Prepared, Sealer
from hicache_core.storage.answers import ContractViolation, checked_by_pool, checked_outcomes
from hicache_core.storage.batches import PageBatch
from hicache_core.storage.breaker import Breaker
from hicache_core.storage.damage import Damage
from hicache_core.storage.dispatch import Dispatch
from hicache_core.storage.ledger import StorageLedger
from hicache_core.storage.transforms import TransformChain
from hicache_core.types import Capabilities, IoContext, Outcome, Page, PoolName, PoolTransfer


@dataclass(slots=True)
class Guard:
    """What the readers and writers of one session hold in common. heal: whether poisoned keys may be healed."""

    dispatch: Dispatch
    ledger: StorageLedger
    damage: Damage
    capabilities: Capabilities
    sealer: Sealer | None
    chain: TransformChain
    heal: bool
    read_breaker: Breaker
    stride: int = field(init=False)
    pagewise: frozenset[str] = field(init=False)
    """Hooks that tell of each page as they come to it."""

    def __post_init__(self) -> None:
        self.stride = self.sealer.stride if self.sealer else 0
        marked = filter(self.dispatch.backend.pagewise, ("batch_get", "batch_set"))
        self.pagewise = frozenset(name for hook in marked for name in (hook, f"{hook}_v1"))


class SealedBatch:
    """The pages of a call with their seals in front, and the arguments of a hook made of them.

    seals: at least one slot per page, or None where the session does not seal.
    """

    def __init__(self, batch: PageBatch, seals: Sequence[memoryview] | None) -> None:
        self.batch = batch
        self.seals = seals
        self.full: Sequence[Page]
        """The pages, seal first. Tuples: a store that puts a buffer of its own into a page instead of filling the
        one that is there would be verified by its buffer, and the caller's would stay as it was."""
        if seals is None:
            self.full = [tuple(page) for page in batch.pages]
        else:
            self.full = [(seal, *page) for seal, page in zip(seals, batch.pages, strict=False)]

    def prepared(self, sealer: Sealer) -> Prepared:
        """What the sealer needs of each key."""
        pages, sizes = self.batch.pages, self.batch.sizes
        regions = len(pages[0])
        if sizes.count(sizes[0]) != len(sizes) or sum(map(len, pages)) != regions * len(pages):
            return sealer.prepare_each(self.batch.keys, self.full)
        return sealer.prepare(self.batch.keys, sizes[0], regions)

    def arguments(self, hook: str, lo: int, hi: int, ctx: IoContext) -> dict[str, Any]:
        """Keyword arguments of any of the six hooks that move pages, for pages lo … hi - 1."""
        part = self.batch.cut(lo, hi)
        full = self.full[lo:hi]
        seals = None if self.seals is None else self.seals[lo:hi]
        if hook.endswith("_v1"):
            return {"keys": part.keys, "host_indices": part.slots, "ctx": replace(ctx, seals=seals, pages=full)}
        if hook.endswith("_v2"):
            return {"transfers": transfers_of(part), "ctx": _context_by_pool(part, seals, full, ctx)}
        return {"keys": part.keys, "pages": full, "ctx": ctx}


def transfers_of(batch: PageBatch) -> list[PoolTransfer]:
    """One transfer per pool of the batch."""
    transfers, start = [], 0
    for name, count in batch.pools:
        slots = None if batch.slots is None else batch.slots[start : start + count]
        transfers.append(PoolTransfer(name, batch.keys[start : start + count], slots))
        start += count
    return transfers


def _context_by_pool(
    batch: PageBatch, seals: Sequence[memoryview] | None, full: Sequence[Page], ctx: IoContext
) -> IoContext:
    by_seal: dict[PoolName, Sequence[memoryview]] = {}
    by_page: dict[PoolName, Sequence[Page]] = {}
    start = 0
    for name, count in batch.pools:
        by_page[name] = full[start : start + count]
        if seals is not None:
            by_seal[name] = seals[start : start + count]
        start += count
    return replace(ctx, seals=None if seals is None else by_seal, pages=by_page)


class _Telling:
    """`ctx.seal_page` or `ctx.verify_page` of one hook call: its page `index` is page `lo + index` of the batch.

    Ends with the call. A thread that a store left behind would stamp seals that are lent to another call by then.
    """

    __slots__ = ("_at_page", "_count", "_lo", "over")

    def __init__(self, at_page: Callable[[int], None], lo: int, count: int) -> None:
        self._at_page, self._lo, self._count = at_page, lo, count
        self.over = False

    def __call__(self, index: int) -> None:
        if self.over:
            raise MisuseError("seal_page or verify_page was called after its hook had returned")
        if not 0 <= index < self._count:
            raise IndexError(f"seal_page or verify_page was told of page {index} in a call of {self._count}")
        self._at_page(self._lo + index)


def issuer(
    guard: Guard,
    hook: str,
    operation: str,
    sealed: SealedBatch,
    ctx: IoContext,
    lengths: list[int] | None = None,
    at_page: Callable[[int], None] | None = None,
) -> Callable[[int, int], list[Outcome]]:
    """A function that makes the hook call for pages lo … hi - 1 and checks its answer. lengths: filled in.

    at_page: called with the index of each page, in the batch, to which a `pagewise` store comes.
    """

    def issue(lo: int, hi: int) -> list[Outcome]:
        told = ctx if lengths is None else replace(ctx, lengths=[0] * (hi - lo))
        telling = None if at_page is None else _Telling(at_page, lo, hi - lo)
        if telling is not None:
            told = replace(told, verify_page=telling) if operation == "get" else replace(told, seal_page=telling)
        arguments = sealed.arguments(hook, lo, hi, told)
        try:
            answer = guard.dispatch.call(hook, **arguments)
        finally:
            if telling is not None:
                telling.over = True
        if lengths is not None and told.lengths is not None:
            if len(told.lengths) != hi - lo:
                raise ContractViolation(hook, f"left {len(told.lengths)} lengths for {hi - lo} keys")
            if set(map(type, told.lengths)) != {int}:
                raise ContractViolation(hook, "left a length that is no int in ctx.lengths")
            lengths[lo:hi] = told.lengths
        if "transfers" in arguments:
            return checked_by_pool(answer, arguments["transfers"], hook, operation)
        return checked_outcomes(answer, hi - lo, hook, operation)

    return issue
