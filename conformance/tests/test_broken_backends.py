"""The suite's own proof: each broken backend is caught by the case meant for it, and a sound one is not."""

import inspect
import os

import broken_answers
import broken_lifetimes
import broken_pagewise
import broken_writes
import pytest
from hicache_conformance import Target, catalogue, run_case
from hicache_conformance.casebook import find_case
from sound_backend import DictDoor, Sound, spec_of

BROKEN = [
    backend
    for module in (broken_answers, broken_writes, broken_lifetimes, broken_pagewise)
    for _, backend in inspect.getmembers(module, inspect.isclass)
    if issubclass(backend, Sound) and backend not in (Sound, broken_pagewise.Pagewise)
]
PATIENCE = {"crossing_batches_do_not_deadlock": 1.5, "closing_while_others_call_does_not_hang": 1.5}
"""Seconds after which a call counts as hung, where the backend does hang."""


@pytest.mark.parametrize("backend", BROKEN, ids=lambda backend: backend.__name__)
def test_a_broken_backend_is_caught_by_its_case(backend):
    patience = PATIENCE.get(backend.caught_by, 2.0 if backend.caught_by == "close_leaves_no_thread" else 20.0)
    target = Target(spec_of(backend), back_door=DictDoor, patience=patience)
    try:
        result = run_case(find_case(backend.caught_by), target)
    finally:
        _release(backend)
    assert result.outcome == "fail", result.reason
    assert result.reason


@pytest.mark.parametrize("case", catalogue(["core", "hybrid"]), ids=lambda case: case.id)
def test_a_sound_backend_passes(case):
    result = run_case(case, Target(spec_of(broken_pagewise.Pagewise), back_door=DictDoor))
    assert (result.outcome, result.reason) == ("pass", "")


@pytest.mark.parametrize("case", catalogue(["core", "hybrid"]), ids=lambda case: case.id)
def test_a_sound_backend_whose_hooks_are_not_marked_passes(case):
    result = run_case(case, Target(spec_of(Sound), back_door=DictDoor))
    assert result.outcome == "pass" or (result.not_applicable and "pagewise" in result.reason), result.reason


def test_every_broken_backend_departs_in_one_way_that_is_named():
    assert len({backend.caught_by for backend in BROKEN}) >= 40
    for backend in BROKEN:
        assert find_case(backend.caught_by).level in ("core", "hybrid")
        assert backend.__doc__


def _release(backend):
    """Give back what the backend leaked on purpose."""
    for descriptor in getattr(backend, "leaked", ()):
        os.close(descriptor)
    if "leaked" in vars(backend):
        backend.leaked.clear()
    if "end" in vars(backend):
        backend.end.set()
