"""Stores with a server of their own: one that comes back whole passes, each that does not is caught by its case."""

import inspect

import mortal_store
import pytest
from hicache_conformance import Target, run_case
from hicache_conformance.casebook import find_case
from mortal_store import Mortal, MortalKit

CASES = ("acknowledged_pages_survive_the_death_of_the_server", "a_dead_server_costs_misses_and_is_found_again")
BROKEN = [
    backend
    for _, backend in inspect.getmembers(mortal_store, inspect.isclass)
    if issubclass(backend, Mortal) and backend is not Mortal
]


@pytest.fixture
def target_of(monkeypatch):
    def make(backend):
        kit = MortalKit(backend)
        monkeypatch.setattr("hicache_conformance.target.find_kit", lambda name: kit)
        return Target(mortal_store.spec(backend), patience=2.5)

    return make


@pytest.mark.parametrize("case", CASES)
def test_a_store_that_comes_back_whole_passes(case, target_of):
    result = run_case(find_case(case), target_of(Mortal))
    assert (result.outcome, result.reason) == ("pass", "")


@pytest.mark.parametrize("backend", BROKEN, ids=lambda backend: backend.__name__)
def test_a_store_that_dies_badly_is_caught(backend, target_of):
    result = run_case(find_case(backend.caught_by), target_of(backend))
    assert result.outcome == "fail", result.reason


def test_only_a_throwaway_server_is_killed(monkeypatch):
    kit = MortalKit(Mortal)
    kit.throwaway(None)
    monkeypatch.setattr("hicache_conformance.target.find_kit", lambda name: kit)
    result = run_case(find_case(CASES[1]), Target("memory", {"max_bytes": 1 << 20}))
    assert (result.outcome, result.not_applicable) == ("skip", False)
    assert "throwaway" in result.reason
