"""A part of the conformance suite on each way of running the store; the whole of it: `hicache conformance hf3fs`."""

import pytest
from hicache_hf3fs.backdoor import EmulatedKit, PosixKit, ServiceKit
from hicache_hf3fs.emulator import emulated_3fs

pytest.importorskip("hicache_conformance", reason="pip install hicache-conformance")
from hicache_conformance import backdoor
from hicache_conformance.casebook import catalogue
from hicache_conformance.runner import run
from hicache_conformance.target import Target

QUICK = ("batch", "exists", "key", "page", "set", "removing", "damage", "flipped", "truncated", "replace")


@pytest.mark.parametrize(("make", "every"), [(PosixKit, 2), (ServiceKit, 9), (EmulatedKit, 2)])
def test_cases_of_every_kind_pass(make, every, monkeypatch, tmp_path):
    kit = make()
    monkeypatch.setattr(backdoor, "find_kit", lambda name: kit)
    monkeypatch.setattr("hicache_conformance.target.find_kit", lambda name: kit)
    with emulated_3fs(tmp_path):  # takes the modules that the kit puts in place out again
        chosen = [case.id for case in catalogue(("core", "hostile")) if any(word in case.id for word in QUICK)]
        report = run(Target("hf3fs"), cases=chosen[::every], seed=11)
        getattr(kit, "close", lambda: None)()
    wrong = [(r.id, r.reason) for r in report.results if r.outcome not in ("pass", "skip")]
    assert wrong == []
    assert all(r.outcome == "pass" or r.not_applicable for r in report.results)
    assert len(report.results) > 4
    assert bool(report.fake) == (make is EmulatedKit)
