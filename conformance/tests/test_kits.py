"""Kits: what a run starts for its throwaway stores, it stops, and a fake is called one."""

import logging

import pytest
from hicache_conformance import Target, backdoor, run
from sound_backend import DictDoor, Sound, spec_of

QUICK = ["an_empty_batch_is_legal"]


class Kit:
    """A store in this process, as if a server ran."""

    def __init__(self):
        self.running, self.closed = False, 0

    def throwaway(self, directory):
        self.running = True
        return {}

    def back_door(self, backend, options):
        return DictDoor(backend, options)

    def close(self):
        self.running, self.closed = False, self.closed + 1


class Fake(Kit):
    """The same, and no real store."""

    fake = "a dict in place of the vendor's server"


class Stubborn(Kit):
    """A server that does not stop."""

    def close(self):
        raise OSError("no such process")


class Old:
    """A kit that knows nothing of close and fake."""

    def throwaway(self, directory):
        return {}

    def back_door(self, backend, options):
        return DictDoor(backend, options)


@pytest.fixture
def kitted(monkeypatch):
    def make(kit):
        monkeypatch.setattr("hicache_conformance.target.find_kit", lambda name: kit)
        return Target(spec_of(Sound))

    return make


def test_a_run_closes_the_kit_once(kitted):
    kit = Kit()
    report = run(kitted(kit), cases=QUICK, seed=1)
    assert (report.counts["pass"], kit.running, kit.closed) == (1, False, 1)
    assert (report.fake, report.fake_reason) == (False, "")
    backdoor.close_kits()
    assert kit.closed == 1


def test_a_run_that_ends_early_closes_the_kit_too(kitted):
    kit = Kit()

    def stop(case):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(kitted(kit), cases=QUICK, seed=1, on_start=stop)
    assert (kit.running, kit.closed) == (False, 1)


def test_a_fake_is_called_one_with_its_reason(kitted):
    report = run(kitted(Fake()), cases=QUICK, seed=1).as_dict()
    assert (report["fake"], report["fake_reason"]) == (True, Fake.fake)


def test_a_store_of_ones_own_is_no_fake(monkeypatch):
    monkeypatch.setattr("hicache_conformance.target.find_kit", lambda name: Fake())
    assert Target("memory", {"no": "matter"}).fake == ""


def test_a_kit_that_cannot_stop_is_told_of_and_judges_nothing(kitted, caplog):
    with caplog.at_level(logging.ERROR):
        assert not run(kitted(Stubborn()), cases=QUICK, seed=1).failed
    assert "Stubborn.close() failed" in caplog.text


def test_a_kit_of_before_is_still_a_kit(kitted):
    assert not run(kitted(Old()), cases=QUICK, seed=1).failed
