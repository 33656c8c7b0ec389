"""The suite's verdict on plugin POSIX; `hicache conformance nixl -o plugin=OBJ …` asks the other one."""

from __future__ import annotations

from pathlib import Path

import pytest
from hicache_conformance import BackendSuite, Target
from hicache_nixl.backdoor import kit


class TestNixl(BackendSuite):
    """Every case of every level."""

    @pytest.fixture
    def target(self, tmp_path: Path) -> Target:
        return Target("nixl", kit.throwaway(tmp_path))
