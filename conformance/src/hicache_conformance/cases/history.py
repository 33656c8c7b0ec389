"""Random histories against a dict: Hypothesis finds the shortest one that a store gets wrong."""

from __future__ import annotations

from typing import Any

import hypothesis
import hypothesis.strategies as st
from hypothesis import HealthCheck, Phase
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from hicache_conformance.casebook import case
from hicache_conformance.driver import Driver
from hicache_conformance.harness import Harness
from hicache_conformance.material import page_bytes
from hicache_conformance.verdict import CaseFailed, check, check_bytes, check_equal
from hicache_core.types import Outcome

_KEYS = 7
_SIZES = (64, 96, 512)
_numbers = st.lists(st.integers(0, _KEYS - 1), max_size=6)
_Stored = dict[str, tuple[int, int]]


class History(RuleBasedStateMachine):
    """One history: a fresh pair of namespaces, and a model from key to (version, bytes beside the seal)."""

    harness: Harness
    store: Driver
    turn = 0

    def __init__(self) -> None:
        super().__init__()
        type(self).turn += 1
        self.model: _Stored = {}
        self.names = [self.harness.namespace(1000 + 2 * self.turn + n) for n in (0, 1)]
        tails = ("a", "a/b", "ab", "c.kv", "d/e/f", ".g", "0")
        self.all_keys = [f"{self.names[n % 2]}/{tail}" for n, tail in enumerate(tails)]

    def _shape(self, size: int) -> tuple[int, int]:
        return (self.harness.stride, self.harness.rounded(size))

    @rule(numbers=_numbers, version=st.integers(0, 3), size=st.sampled_from(_SIZES), replace=st.booleans())
    def put(self, numbers: list[int], version: int, size: int, replace: bool) -> None:
        """Set a batch, perhaps with duplicates (then of equal bytes), perhaps replacing."""
        can = self.harness.capabilities
        replace = replace and can.replace
        keys = [self.all_keys[n] for n in numbers]
        shape = self._shape(size)
        outcomes = self.harness.put(self.store, keys, version=version, shape=shape, replace=replace)
        known = set(self.model)
        for key, outcome in zip(keys, outcomes, strict=True):
            fresh = key not in known or replace
            legal = {Outcome.STORED} if fresh else {Outcome.EXISTS} if can.reports_exists else {*_TOLD}
            if fresh and keys.count(key) > 1:
                legal = {*_TOLD}
            check(outcome in legal, f"set of {key!r} answered {outcome.name}; one of {sorted(o.name for o in legal)}")
            if fresh:
                self.model[key] = (version, shape[1])

    @rule(numbers=_numbers)
    def exists(self, numbers: list[int]) -> None:
        """The run from the start."""
        keys = [self.all_keys[n] for n in numbers]
        run = next((i for i, key in enumerate(keys) if key not in self.model), len(keys))
        check_equal(self.store.exists(keys), run, f"exists of {keys}")

    @rule(numbers=_numbers)
    def contains(self, numbers: list[int]) -> None:
        """Each key by itself, where the store implements it."""
        keys = [self.all_keys[n] for n in numbers]
        answer = self.store.contains(keys)
        if answer is not None:
            check_equal(answer, [key in self.model for key in keys], f"contains of {keys}")

    @rule(numbers=_numbers, size=st.sampled_from(_SIZES))
    def get(self, numbers: list[int], size: int) -> None:
        """Right bytes, MISS, or CORRUPT for another length."""
        keys = [self.all_keys[n] for n in numbers]
        shape = self._shape(size)
        pages = [self.harness.blank(shape) for _ in keys]
        for key, page, outcome in zip(keys, pages, self.store.get(keys, pages), strict=True):
            if key not in self.model:
                check_equal(outcome, Outcome.MISS, f"get of {key!r}")
                continue
            version, stored = self.model[key]
            if stored == shape[1]:
                check_equal(outcome, Outcome.HIT, f"get of {key!r}")
                check_bytes(page.data(), page_bytes(key, page.nbytes, version), f"bytes of {key!r}")
            elif stored > shape[1] or not self.harness.capabilities.variable_length:
                check_equal(outcome, Outcome.CORRUPT, f"get of {stored} bytes into {shape[1]}")

    @precondition(lambda self: self.harness.capabilities.delete == "immediate")
    @rule(numbers=st.lists(st.integers(0, _KEYS - 1), max_size=4, unique=True))
    def delete(self, numbers: list[int]) -> None:
        """HIT and gone, or MISS."""
        keys = [self.all_keys[n] for n in numbers]
        expected = [Outcome.HIT if key in self.model else Outcome.MISS for key in keys]
        check_equal(self.store.delete(keys), expected, f"delete of {keys}")
        for key in keys:
            self.model.pop(key, None)

    @rule(n=st.integers(0, 1))
    def clear(self, n: int) -> None:
        """Everything of one namespace."""
        cleared = self.store.clear(self.names[n])
        if cleared is not None:
            gone = [key for key in self.model if key.startswith(self.names[n] + "/")]
            check_equal(cleared, len(gone), "keys that clear says it removed")
            for key in gone:
                del self.model[key]

    @rule(n=st.integers(0, 1))
    def scan(self, n: int) -> None:
        """Exactly the keys of one namespace."""
        found = self.store.scan(self.names[n])
        if found is not None:
            expected = {
                k: self.harness.stride + v[1] for k, v in self.model.items() if k.startswith(self.names[n] + "/")
            }
            check_equal({key: nbytes for key, nbytes, _ in found}, expected, "what scan lists")

    @precondition(lambda self: self.harness.capabilities.durable)
    @rule()
    def reopen(self) -> None:
        """Close, and open again: a durable store has lost nothing."""
        self.store.close()
        type(self).store = self.harness.open()

    def teardown(self) -> None:
        """Leave nothing behind for the next history."""
        for name in self.names:
            self.store.clear(name)


_TOLD = (Outcome.STORED, Outcome.EXISTS)


@case("core", "all rules together", rounds=1)
def random_histories_agree_with_a_model(h: Harness) -> None:
    """Forty random histories of set, replace, get, exists, delete, clear, scan and reopen agree with a dict.

    The seed of the run decides them; the shortest failing history is printed in the reason.
    """
    run_histories(h, type("History", (History,), {"harness": h, "store": h.open(), "turn": 0}), examples=40)


def run_histories(h: Harness, machine: type[RuleBasedStateMachine], *, examples: int) -> None:
    """Run random histories of a machine, which the seed decides; a failure tells the steps of the shortest."""
    settings = hypothesis.settings(
        max_examples=examples,
        stateful_step_count=25,
        deadline=None,
        database=None,
        print_blob=False,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
    )
    try:
        run_state_machine_as_test(hypothesis.seed(h.seed)(machine), settings=settings)
    except CaseFailed as failure:
        notes: Any = getattr(failure, "__notes__", ())
        steps = " ".join(" ".join(notes).split())
        raise CaseFailed(f"{failure} [seed {h.seed}: {steps}]") from failure
