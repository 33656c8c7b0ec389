"""Hybrid models: several pools beside KV, each with its own policy; what prefix of them can be restored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np

from hicache_conformance.casebook import case
from hicache_conformance.harness import Harness
from hicache_conformance.pools import WatchedPool, usual_form
from hicache_conformance.sessioning import Opened, session_on
from hicache_conformance.verdict import check, check_equal
from hicache_core.types import Outcome, PoolHitPolicy, PoolName, PoolTransfer, PoolTransferResult, Slots

KV, INDEXER, SWA, MAMBA = PoolName.KV, PoolName.INDEXER, PoolName.SWA, PoolName.MAMBA
ALL, TRAILING = PoolHitPolicy.ALL_PAGES, PoolHitPolicy.TRAILING_PAGES
_There: TypeAlias = Mapping[PoolName, Sequence[bool]]


class Pools:
    """One session with KV and three side pools, each of another page size, all registered."""

    def __init__(self, h: Harness, count: int, names: Sequence[PoolName] = (KV, INDEXER, SWA, MAMBA)) -> None:
        self.h, self.count = h, count
        self.s: Opened = session_on(h)
        form = usual_form(h)
        self.of: dict[PoolName, WatchedPool] = {}
        for n, name in enumerate(names):
            self.of[name] = self.s.pool(count, form=form, name=name, layers=1 + n % 3)

    def label(self, name: PoolName, page_hash: str) -> str:
        """What the bytes of a page follow from: the same hash has other bytes in another pool."""
        return f"{name}:{page_hash}"

    def fill(self, name: PoolName, hashes: Sequence[str], version: int = 0) -> Slots:
        """The pages' bytes into slots 0, 1, …; these slots."""
        for slot, page_hash in enumerate(hashes):
            self.of[name].fill(slot, self.label(name, page_hash), version)
        return np.arange(len(hashes))

    def store(self, pages: Mapping[PoolName, list[str]]) -> None:
        """One set_v2 over all pools, every page new."""
        transfers = [PoolTransfer(name, hashes, self.fill(name, hashes)) for name, hashes in pages.items()]
        for name, outcomes in self.s.session.set_v2(transfers).items():
            check_equal(outcomes, [Outcome.STORED] * len(pages[name]), f"set_v2 of new pages of pool {name}")

    def with_holes(self, hashes: Sequence[str], there: _There) -> None:
        """Store exactly the pages whose flag is true."""
        self.store({name: [x for x, yes in zip(hashes, flags, strict=True) if yes] for name, flags in there.items()})

    def expect(self, hashes: Sequence[str], queries: Sequence[PoolTransfer], there: _There, what: str) -> None:
        """exists_v2 tells every prefix that the oracle finds, and no other."""
        found = self.s.session.exists_v2(hashes, queries)
        expected = oracle(there, queries)
        told = list(found.restorable or ())
        check_equal(told, expected, f"prefix lengths that can be restored: {what}")
        check_equal(found.kv_hit_pages, max(expected, default=0), f"kv_hit_pages: {what}")


def oracle(there: _There, queries: Sequence[PoolTransfer]) -> list[int]:
    """The rule, word for word: prefix p needs KV pages 0 … p - 1, and of each pool those of its policy."""
    kv = there[KV]
    lengths = []
    for p in range(1, len(kv) + 1):
        needed = [kv[i] for i in range(p)]
        for query in queries:
            start = 0 if query.policy is ALL else max(0, p - query.trailing)
            needed += [there[query.name][i] for i in range(start, p)]
        if all(needed):
            lengths.append(p)
    return lengths


def ask(name: PoolName, hashes: Sequence[str], policy: PoolHitPolicy = ALL, trailing: int = 1) -> PoolTransfer:
    """A question about one pool."""
    return PoolTransfer(name, hashes, None, policy, trailing)


def _flags(count: int, *holes: int) -> list[bool]:
    return [n not in holes for n in range(count)]


@case("hybrid", "batch_exists_v2: ALL_PAGES")
def a_hole_in_a_pool_that_needs_all_pages_ends_the_prefix(h: Harness) -> None:
    """ALL_PAGES: no prefix reaches over a hole, whichever pool it is in, KV too."""
    pools = Pools(h, 16)
    for n, (kv, indexer) in enumerate((((), (5,)), ((3,), ()), ((6,), (2, 7)), ((), (0,)), ((0,), ()))):
        hashes = pools.s.hashes(10, start=100 * n)
        there = {KV: _flags(10, *kv), INDEXER: _flags(10, *indexer)}
        pools.with_holes(hashes, there)
        pools.expect(hashes, [ask(INDEXER, hashes)], there, f"holes in KV at {kv}, in the indexer pool at {indexer}")


@case("hybrid", "batch_exists_v2: TRAILING_PAGES")
def a_pool_with_a_window_needs_only_its_window(h: Harness) -> None:
    """TRAILING_PAGES: prefix p needs pages p - window … p - 1; a hole before the window does not matter."""
    pools = Pools(h, 16)
    hashes = pools.s.hashes(12)
    there = {KV: _flags(12), SWA: _flags(12, 0, 1, 2, 6, 9)}
    pools.with_holes(hashes, there)
    for window in (1, 2, 3, 4, 12, 50):
        pools.expect(hashes, [ask(SWA, hashes, TRAILING, window)], there, f"window {window}, holes at 0 1 2 6 9")
    check_equal(pools.s.session.exists_v2(hashes, [ask(SWA, hashes)]).kv_hit_pages, 0, "the same pool, all pages")
    one = {KV: _flags(12), MAMBA: _flags(12, *range(7), *range(8, 12))}
    fresh = pools.s.hashes(12, start=50)
    pools.with_holes(fresh, one)
    pools.expect(fresh, [ask(MAMBA, fresh, TRAILING, 1)], one, "a state of which only page 7 was stored")


@case("hybrid", "batch_exists_v2")
def every_restorable_prefix_is_told(h: Harness) -> None:
    """KV and three pools with random holes and windows: exactly the prefix lengths of an oracle, ascending."""
    pools = Pools(h, 24)
    count = 20
    for turn in range(3):
        hashes = pools.s.hashes(count, start=100 * turn)
        there = {
            KV: _flags(count, count - h.rng.randrange(6)),
            INDEXER: _flags(count, count - h.rng.randrange(8)),
            SWA: [h.rng.random() < 0.8 for _ in range(count)],
            MAMBA: [h.rng.random() < 0.35 for _ in range(count)],
        }
        pools.with_holes(hashes, there)
        for _ in range(6):
            length = h.rng.randrange(1, count + 1)
            start = h.rng.randrange(count - length + 1)
            some = hashes[start : start + length]
            queries = [
                ask(INDEXER, some),
                ask(SWA, some, TRAILING, h.rng.randrange(1, 6)),
                ask(MAMBA, some, TRAILING, 1),
            ]
            queries = h.rng.sample(queries, h.rng.randrange(1, 4))
            cut = {name: flags[start : start + length] for name, flags in there.items()}
            shown = ", ".join(f"{q.name} {q.policy} {q.trailing}" for q in queries)
            pools.expect(some, queries, cut, f"pages {start} … {start + length} asked for {shown}")


@case("hybrid", "batch_exists_v2", rounds=1)
def a_window_reaches_back_over_the_cut_of_a_call(h: Harness) -> None:
    """A prefix of more pages than one call takes: a window that begins in the call before is seen."""
    pools = Pools(h, 160, names=(KV, SWA))
    hashes = pools.s.hashes(150)
    there = {KV: _flags(150, 147), SWA: _flags(150, 40, 120, 124, 135)}
    pools.with_holes(hashes, there)
    for window in (1, 6, 30):
        pools.expect(hashes, [ask(SWA, hashes, TRAILING, window)], there, f"150 pages, window {window}")


@case("hybrid", "batch_exists_v2")
def nothing_stored_restores_nothing(h: Harness) -> None:
    """No page, no query, no key: 0 and no lengths; a policy that is not supported never hits."""
    pools = Pools(h, 8, names=(KV, SWA))
    hashes = pools.s.hashes(6)
    session = pools.s.session
    for queries in ([], [ask(SWA, hashes)], [ask(SWA, hashes, TRAILING, 2)]):
        _is(session.exists_v2(hashes, queries), [], f"nothing is stored, {len(queries)} pools asked")
    pools.store({KV: hashes})
    _is(session.exists_v2(hashes, []), [1, 2, 3, 4, 5, 6], "no pool but KV asked")
    _is(session.exists_v2([], [ask(SWA, [])]), [], "no page asked")
    _is(session.exists_v2(hashes, [ask(SWA, hashes, TRAILING, 1)]), [], "the pool holds nothing")
    _is(session.exists_v2(hashes, [ask(SWA, hashes, PoolHitPolicy.BLOCK_GROUPS)]), [], "block groups")


def _is(found: PoolTransferResult, lengths: list[int], what: str) -> None:
    check_equal((found.kv_hit_pages, list(found.restorable or ())), (max(lengths, default=0), lengths), what)


@case("hybrid", "batch_get_v2, batch_set_v2")
def pools_of_one_call_have_their_own_bytes(h: Harness) -> None:
    """The same hashes in four pools of different page sizes, one call: each page comes back in its own pool."""
    pools = Pools(h, 12)
    hashes = pools.s.hashes(8)
    pools.store({name: hashes[: 8 - n] for n, name in enumerate(pools.of)})
    transfers = []
    for n, (name, pool) in enumerate(pools.of.items()):
        pool.poison()
        slots = np.array(h.rng.sample(range(12), 8 - n), np.int64)
        transfers.append(PoolTransfer(name, h.rng.sample(hashes[: 8 - n], 8 - n), slots))
    answers = pools.s.session.get_v2(transfers)
    check_equal(set(answers), set(pools.of), "pools that get_v2 answers for")
    for transfer in transfers:
        name, pool = transfer.name, pools.of[transfer.name]
        check_equal(answers[name], [Outcome.HIT] * len(transfer.keys), f"get_v2 of the pages of pool {name}")
        slots = [] if transfer.slots is None else transfer.slots.tolist()
        for page_hash, slot in zip(transfer.keys, slots, strict=True):
            pool.expect(slot, pools.label(name, page_hash), "after get_v2")
        pool.expect_untouched(slots, f"get_v2 of pool {name}")


@case("hybrid", "batch_get_v2: order")
def a_miss_in_one_pool_does_not_disturb_the_others(h: Harness) -> None:
    """Holes in each pool: every page has its own answer, in order; what is there comes back whole."""
    pools = Pools(h, 12)
    hashes = pools.s.hashes(10)
    there = {name: [h.rng.random() < 0.6 for _ in hashes] for name in pools.of}
    pools.with_holes(hashes, there)
    slots = np.array(h.rng.sample(range(12), 10), np.int64)
    for pool in pools.of.values():
        pool.poison()
    answers = pools.s.session.get_v2([PoolTransfer(name, hashes, slots) for name in pools.of])
    for name, flags in there.items():
        expected = [Outcome.HIT if yes else Outcome.MISS for yes in flags]
        check_equal(answers[name], expected, f"get_v2 of pool {name} with holes")
        for page_hash, slot, yes in zip(hashes, slots.tolist(), flags, strict=True):
            if yes:
                pools.of[name].expect(slot, pools.label(name, page_hash), "beside missing pages")
            elif h.capabilities.clean_miss:
                check(pools.of[name].is_poison(slot), f"the MISS of a page of pool {name} changed its slot")
        pools.of[name].expect_untouched(slots.tolist(), f"get_v2 of pool {name}")
    again = pools.s.session.set_v2([PoolTransfer(name, hashes, pools.fill(name, hashes, 1)) for name in pools.of])
    for name, flags in there.items():
        check(all(again[name]), f"set_v2 over known and new pages of pool {name}: {[o.name for o in again[name]]}")
        if h.capabilities.reports_exists:
            expected = [Outcome.EXISTS if yes else Outcome.STORED for yes in flags]
            check_equal(again[name], expected, f"set_v2 over known and new pages of pool {name}")


@case("hybrid", "pools without bytes")
def a_pool_without_bytes_is_never_stored(h: Harness) -> None:
    """A logical pool (slots None) hits and exists without a byte in the store, beside pools that have bytes."""
    pools = Pools(h, 8, names=(KV,))
    s, hashes = pools.s, pools.s.hashes(5)
    logical = PoolTransfer(MAMBA, hashes)
    slots = pools.fill(KV, hashes)
    answers = s.session.set_v2([logical, PoolTransfer(KV, hashes, slots)])
    check_equal(answers[MAMBA], [Outcome.EXISTS] * 5, "set_v2 of a pool without bytes")
    check_equal(answers[KV], [Outcome.STORED] * 5, "set_v2 of the pool beside it")
    check_equal(s.session.contains(hashes, pool="mamba"), [False] * 5, "pages of the pool without bytes in the store")
    pools.of[KV].poison()
    answers = s.session.get_v2([PoolTransfer(KV, hashes, slots), logical])
    check_equal(answers[MAMBA], [Outcome.HIT] * 5, "get_v2 of a pool without bytes")
    check_equal(answers[KV], [Outcome.HIT] * 5, "get_v2 of the pool beside it")
    for slot, page_hash in enumerate(hashes):
        pools.of[KV].expect(slot, pools.label(KV, page_hash), "beside a pool without bytes")
    only = s.session.set_v2([logical])
    check_equal(only, {MAMBA: [Outcome.EXISTS] * 5}, "set_v2 of nothing but a pool without bytes")


@case("hybrid", "one answer per key")
def empty_transfers_are_legal(h: Harness) -> None:
    """No transfers, a transfer of no keys, and one beside a full one: each pool is answered by itself."""
    pools = Pools(h, 8, names=(KV, SWA))
    session, hashes = pools.s.session, pools.s.hashes(3)
    nothing = np.empty(0, np.int64)
    check_equal(session.set_v2([]), {}, "set_v2 of no pools")
    check_equal(session.get_v2([]), {}, "get_v2 of no pools")
    check_equal(session.get_v2([PoolTransfer(SWA, [], nothing)]), {SWA: []}, "get_v2 of no keys")
    slots = pools.fill(KV, hashes)
    answers = session.set_v2([PoolTransfer(SWA, [], nothing), PoolTransfer(KV, hashes, slots)])
    check_equal(answers, {SWA: [], KV: [Outcome.STORED] * 3}, "set_v2 of a full pool beside an empty one")
    answers = session.get_v2([PoolTransfer(KV, hashes, slots), PoolTransfer(SWA, [], nothing)])
    check_equal(answers, {KV: [Outcome.HIT] * 3, SWA: []}, "get_v2 of a full pool beside an empty one")


@case("hybrid", "keys")
def the_pool_is_part_of_the_key(h: Harness) -> None:
    """A page of one pool is no page of another, by buffers and by v2, whatever their sizes; clear takes them all."""
    pools = Pools(h, 8)
    s, hashes = pools.s, pools.s.hashes(4)
    for n, name in enumerate(pools.of):
        check_equal(s.session.exists(hashes, pool=name.value), 0, f"exists in pool {name}, before it was written")
        pools.store({name: hashes})
        for other in list(pools.of)[n + 1 :]:
            check_equal(s.session.exists(hashes, pool=other.value), 0, f"exists in pool {other} after {name}")
    if h.capabilities.delete == "immediate":
        check_equal(s.session.delete(hashes[:2], pool="swa"), [Outcome.HIT] * 2, "delete in one pool")
        there = {name: _flags(4, 0, 1) if name is SWA else _flags(4) for name in pools.of}
        for name, flags in there.items():
            check_equal(s.session.contains(hashes, pool=name.value), flags, f"pool {name} after a delete in another")
