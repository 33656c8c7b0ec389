"""zero_copy and hybrid, proven: each broken native backend is caught by its case, and a sound one passes them all."""

import inspect

import broken_hybrid
import broken_pools
import pytest
from hicache_conformance import Target, catalogue, run_case
from hicache_conformance.casebook import find_case
from native_backend import Native
from sound_backend import DictDoor, spec_of

BROKEN = [
    backend
    for module in (broken_hybrid, broken_pools)
    for _, backend in inspect.getmembers(module, inspect.isclass)
    if issubclass(backend, Native) and backend is not Native
]


DOES_NOT_CONCERN_IT = (
    "memory_of_the_stores_allocator_serves_as_a_pool",
    "a_page_is_sealed_before_it_is_read",
    "a_page_is_in_place_when_it_is_verified",
)
"""It has no allocator, and its hooks bear no mark."""


@pytest.mark.parametrize("backend", BROKEN, ids=lambda backend: backend.__name__)
def test_a_broken_pool_is_caught_by_its_case(backend):
    result = run_case(find_case(backend.caught_by), Target(spec_of(backend), back_door=DictDoor, patience=10.0))
    assert result.outcome == "fail", result.reason


@pytest.mark.parametrize("case", catalogue(["core", "zero_copy", "hybrid"]), ids=lambda case: case.id)
def test_a_sound_native_backend_passes(case):
    result = run_case(case, Target(spec_of(Native), back_door=DictDoor))
    expected = "skip" if case.id in DOES_NOT_CONCERN_IT else "pass"
    assert result.outcome == expected, result.reason
    assert result.not_applicable == (expected == "skip")
