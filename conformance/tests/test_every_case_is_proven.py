"""A case that nothing can fail proves nothing: each one is shown to fail by a broken backend or a broken core."""

import inspect

import broken_answers
import broken_files
import broken_hybrid
import broken_lifetimes
import broken_pagewise
import broken_pools
import broken_writes
import mortal_store
from hicache_conformance import catalogue
from test_broken_core import BREAKAGES

MODULES = (
    broken_answers,
    broken_files,
    broken_hybrid,
    broken_lifetimes,
    broken_pagewise,
    broken_pools,
    broken_writes,
    mortal_store,
)


def broken():
    return [
        backend
        for module in MODULES
        for _, backend in inspect.getmembers(module, inspect.isclass)
        if "caught_by" in vars(backend) and backend.__module__ == module.__name__
    ]


def test_every_case_is_failed_by_something_broken():
    proven = {backend.caught_by for backend in broken()} | set(BREAKAGES)
    assert [case.id for case in catalogue() if case.id not in proven] == []
    assert proven - {case.id for case in catalogue()} == set()


def test_there_are_many_broken_backends_and_each_says_how():
    assert len(broken()) >= 150
    assert all(backend.__doc__ for backend in broken())
