"""Durable, shared, hostile: each broken file store is caught by its case, and a sound one passes every case."""

import inspect

import broken_files
import pytest
from hicache_conformance import Target, catalogue, run_case
from hicache_conformance.casebook import find_case
from tiny_files import TinyDoor, TinyFiles

BROKEN = [
    backend
    for _, backend in inspect.getmembers(broken_files, inspect.isclass)
    if issubclass(backend, TinyFiles) and backend is not TinyFiles
]

NEED_A_SERVER = {
    "acknowledged_pages_survive_the_death_of_the_server",
    "a_dead_server_costs_misses_and_is_found_again",
}
"""Judged in test_mortal_store.py: files have no server that could die."""


def target_of(backend, tmp_path, module="broken_files", **more):
    attribute = f"{backend.__name__}Spec" if module == "broken_files" else "SOUND"
    spec = getattr(__import__(module), attribute)
    options = {"root": str(tmp_path / "store")}
    return Target(spec, options, spec_ref=f"{module}:{attribute}", back_door=TinyDoor, **more)


@pytest.mark.parametrize("backend", BROKEN, ids=lambda backend: backend.__name__)
def test_a_broken_file_store_is_caught_by_its_case(backend, tmp_path):
    patience = 2.0 if backend.__name__ == "WaitsForAPipe" else 20.0
    result = run_case(find_case(backend.caught_by), target_of(backend, tmp_path, patience=patience))
    assert result.outcome == "fail", result.reason


@pytest.mark.parametrize("case", catalogue(["durable", "shared", "hostile"]), ids=lambda case: case.id)
def test_a_sound_file_store_passes(case, tmp_path):
    result = run_case(case, target_of(TinyFiles, tmp_path, "tiny_files"))
    if case.id in NEED_A_SERVER:
        assert result.not_applicable, result.reason
    else:
        assert (result.outcome, result.reason) == ("pass", "")
