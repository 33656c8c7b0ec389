"""A part of the conformance suite against a real master and owner; the whole of it: `hicache conformance mooncake`.

A client takes a second to close, and nearly each case opens one for each round: all cases would take minutes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hicache_mooncake.backdoor import kit

from hicache_core.plugin.dev_servers import DevServer

pytest.importorskip("hicache_conformance", reason="pip install hicache-conformance")
from hicache_conformance import Case, Target, catalogue, run_case
from hicache_conformance.casebook import find_case

OF_ANY_SESSION = {"hooks", "hooks, close", "layers of a session: transforms"}
"""Rules of what the core does over whatever backend."""
OF_MARKED_HOOKS = {"batch_set, batch_set_v1: pagewise", "batch_get, batch_get_v1: pagewise"}
"""The client moves a batch by itself."""
BEYOND = (
    "what_one_process_wrote_every_process_reads",
    "the_back_door_opens_the_store",
    "a_flipped_bit_is_a_miss_and_heals",
    "a_truncated_page_is_a_miss_and_heals",
)
"""Of the levels shared and hostile: another process, and damage put there past the backend."""
OTHERS = OF_ANY_SESSION | OF_MARKED_HOOKS
ONE_OF_EACH_RULE = {case.rule: case for case in reversed(catalogue(["core"])) if case.rule not in OTHERS}
CASES = [*reversed(ONE_OF_EACH_RULE.values()), *map(find_case, BEYOND)]


@pytest.fixture(scope="module")
def target(store: DevServer) -> Iterator[Target]:
    """The store of the whole run. The way past the backend is a client of its own, closed at the end."""
    yield Target("mooncake", store.options)
    kit.close()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_a_case_of_each_rule_holds(case: Case, target: Target, request: pytest.FixtureRequest) -> None:
    result = run_case(replace(case, rounds=1), target, seed=request.config.getoption("--conformance-seed"))
    assert (result.outcome, result.reason) == ("pass", "")
