"""Random histories through pools: buffers, v1 and v2 over a session, against a dict."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from hicache_conformance.casebook import case
from hicache_conformance.cases.history import run_histories
from hicache_conformance.cases.hybrid import ALL, INDEXER, KV, SWA, TRAILING, Pools, ask
from hicache_conformance.harness import Harness
from hicache_conformance.verdict import check, check_equal
from hicache_core.types import Outcome, PoolName, PoolTransfer

_PAGES, _SLOTS = 6, 12
_numbers = st.lists(st.integers(0, _PAGES - 1), min_size=1, max_size=5, unique=True)
_pools = st.sampled_from((KV, INDEXER, SWA))
_shuffles = st.integers(0, 2**16)


class PoolHistory(RuleBasedStateMachine):
    """One history: fresh hashes, and a model from (pool, number) to the version stored."""

    harness: Harness
    pools: Pools
    turn = 0

    def __init__(self) -> None:
        super().__init__()
        type(self).turn += 1
        self.hashes = self.pools.s.hashes(_PAGES, start=1000 + 100 * self.turn)
        self.model: dict[tuple[PoolName, int], int] = {}

    def _lend(self, name: PoolName, numbers: list[int], shuffle: int, version: int | None) -> PoolTransfer:
        """Slots in some order, holding the pages' bytes of that version, or poison."""
        pool = self.pools.of[name]
        slots = np.random.Generator(np.random.PCG64(shuffle)).permutation(_SLOTS)[: len(numbers)]
        pool.poison()
        for n, slot in zip(numbers, slots.tolist(), strict=True):
            if version is not None:
                pool.fill(slot, self.pools.label(name, self.hashes[n]), version)
        return PoolTransfer(name, [self.hashes[n] for n in numbers], slots)

    def _stored(self, name: PoolName, numbers: list[int], outcomes: list[Outcome], version: int, over: bool) -> None:
        for n, outcome in zip(numbers, outcomes, strict=True):
            check(outcome, f"set of page {n} of pool {name} answered {outcome.name}")
            if over or (name, n) not in self.model:
                check_equal(outcome, Outcome.STORED, f"set of page {n} of pool {name}")
                self.model[name, n] = version
            elif self.harness.capabilities.reports_exists:
                check_equal(outcome, Outcome.EXISTS, f"set of the known page {n} of pool {name}")

    def _found(self, transfer: PoolTransfer, numbers: list[int], outcomes: list[Outcome]) -> None:
        pool, name = self.pools.of[transfer.name], transfer.name
        slots = [] if transfer.slots is None else transfer.slots.tolist()
        for n, slot, outcome in zip(numbers, slots, outcomes, strict=True):
            version = self.model.get((name, n))
            if version is None:
                check_equal(outcome, Outcome.MISS, f"get of page {n} of pool {name}")
                continue
            check_equal(outcome, Outcome.HIT, f"get of page {n} of pool {name}")
            pool.expect(slot, self.pools.label(name, self.hashes[n]), "in a history", version)
        pool.expect_untouched(slots, "in a history")

    @rule(numbers=_numbers, name=_pools, version=st.integers(0, 2), shuffle=_shuffles, over=st.booleans())
    def set_v1(self, numbers: list[int], name: PoolName, version: int, shuffle: int, over: bool) -> None:
        """Set pages of one pool, perhaps over what is there."""
        over = over and self.harness.capabilities.replace
        transfer = self._lend(name, numbers, shuffle, version)
        assert transfer.slots is not None
        session = self.pools.s.session
        outcomes = session.set_v1(transfer.keys, transfer.slots, pool=name.value, replace=over)
        self._stored(name, numbers, outcomes, version, over)

    @rule(numbers=_numbers, names=st.sets(_pools, min_size=1), version=st.integers(0, 2), shuffle=_shuffles)
    def set_v2(self, numbers: list[int], names: set[PoolName], version: int, shuffle: int) -> None:
        """Set the same pages of several pools in one call."""
        order = sorted(names, key=str)
        transfers = [self._lend(name, numbers, shuffle, version) for name in order]
        answers = self.pools.s.session.set_v2(transfers)
        for name in order:
            self._stored(name, numbers, answers[name], version, False)

    @rule(numbers=_numbers, name=_pools, shuffle=_shuffles)
    def get_v1(self, numbers: list[int], name: PoolName, shuffle: int) -> None:
        """Get pages of one pool into slots in some order."""
        transfer = self._lend(name, numbers, shuffle, None)
        assert transfer.slots is not None
        outcomes = self.pools.s.session.get_v1(transfer.keys, transfer.slots, pool=name.value)
        self._found(transfer, numbers, outcomes)

    @rule(numbers=_numbers, names=st.sets(_pools, min_size=1), shuffle=_shuffles)
    def get_v2(self, numbers: list[int], names: set[PoolName], shuffle: int) -> None:
        """Get the same pages of several pools in one call."""
        transfers = [self._lend(name, numbers, shuffle, None) for name in sorted(names, key=str)]
        answers = self.pools.s.session.get_v2(transfers)
        for transfer in transfers:
            self._found(transfer, numbers, answers[transfer.name])

    @rule(count=st.integers(1, _PAGES), window=st.integers(1, 3))
    def exists(self, count: int, window: int) -> None:
        """Every prefix over KV, a pool that needs all pages and one with a window."""
        hashes = self.hashes[:count]
        there = {name: [(name, n) in self.model for n in range(count)] for name in (KV, INDEXER, SWA)}
        queries = [ask(INDEXER, hashes, ALL), ask(SWA, hashes, TRAILING, window)]
        self.pools.expect(hashes, queries, there, f"in a history, window {window}")

    @precondition(lambda self: self.harness.capabilities.delete == "immediate")
    @rule(numbers=_numbers, name=_pools)
    def delete(self, numbers: list[int], name: PoolName) -> None:
        """HIT and gone, or MISS."""
        expected = [Outcome.HIT if (name, n) in self.model else Outcome.MISS for n in numbers]
        outcomes = self.pools.s.session.delete([self.hashes[n] for n in numbers], pool=name.value)
        check_equal(outcomes, expected, f"delete of pages {numbers} of pool {name}")
        for n in numbers:
            self.model.pop((name, n), None)


@case("hybrid", "all rules together", rounds=1)
def random_histories_through_pools_agree_with_a_model(h: Harness) -> None:
    """Twenty random histories of set, replace, get, exists, delete by v1 and v2 over three pools agree with a dict.

    The seed of the run decides them; the shortest failing history is printed in the reason.
    """
    pools = Pools(h, _SLOTS, names=(KV, INDEXER, SWA))
    run_histories(h, type("PoolHistory", (PoolHistory,), {"harness": h, "pools": pools, "turn": 0}), examples=20)
