"""Which prefix lengths a set of pools can restore."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hicache_core.types import PoolHitPolicy, PoolTransfer, PoolTransferResult


def restorable(kv_run: int, pools: Sequence[tuple[PoolTransfer, Sequence[bool]]]) -> PoolTransferResult:
    """Every prefix length of 1 … kv_run for which each pool has the pages that its policy asks for.

    pools: each transfer with one bool per page of its first kv_run keys.
    """
    lengths = list(range(1, kv_run + 1))
    for transfer, present in pools:
        have = usable_lengths(transfer, present)
        lengths = [length for length in lengths if length in have]
    return PoolTransferResult(lengths[-1] if lengths else 0, lengths)


def usable_lengths(transfer: PoolTransfer, present: Sequence[bool]) -> set[int]:
    """Prefix lengths, up to len(present), whose pages of this pool are there."""
    usable: set[int] = set()
    run = 0  # pages up to here that are there without a gap
    if transfer.policy is PoolHitPolicy.BLOCK_GROUPS:
        return usable
    for length, there in enumerate(present, start=1):
        run = run + 1 if there else 0
        window = length if transfer.policy is PoolHitPolicy.ALL_PAGES else min(length, max(0, transfer.trailing))
        if run >= window:
            usable.add(length)
    return usable


def prefixes_over_pools(
    keys: Sequence[str],
    transfers: Sequence[PoolTransfer],
    run_of: Callable[[Sequence[str]], int],
    contains: Callable[[Sequence[str]], Sequence[bool]],
) -> PoolTransferResult:
    """The same, asked of a store: run_of(keys) for the KV pool and ALL_PAGES, contains(keys) for windows."""
    if any(transfer.policy is PoolHitPolicy.BLOCK_GROUPS for transfer in transfers):
        return restorable(0, [(t, ()) for t in transfers if t.policy is PoolHitPolicy.BLOCK_GROUPS])
    run = run_of(keys)
    for transfer in transfers:
        if run and transfer.policy is PoolHitPolicy.ALL_PAGES:
            run = min(run, run_of(transfer.keys[:run]))
    windows = [t for t in transfers if t.policy is PoolHitPolicy.TRAILING_PAGES]
    return restorable(run, [(t, contains(t.keys[:run])) for t in windows] if run else [])
