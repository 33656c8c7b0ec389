"""The suite's verdict on the adapter, with a fake of the vendor's client."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hicache_conformance import BackendSuite, Target
from hicache_eic import fake
from hicache_eic.fake_kit import kit


class TestEic(BackendSuite):
    """Every case of every level."""

    @pytest.fixture
    def target(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Target:
        monkeypatch.setitem(sys.modules, "eic", fake)
        return Target("eic", kit.throwaway(tmp_path))


def test_the_store_is_told_to_be_a_fake() -> None:
    assert "fake" in kit.fake
    assert "not yet against the vendor's server" in (Path(__file__).parents[1] / "README.md").read_text()
