"""The suite's verdict, on both connectors that run on a CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
from hicache_aibrix.backdoor import kit
from hicache_conformance import BackendSuite, Target


class TestShfs(BackendSuite):
    """Every case of every level, on a shared directory."""

    @pytest.fixture
    def target(self, tmp_path: Path) -> Target:
        return Target("aibrix", kit.throwaway(tmp_path))


class TestRocksdb(BackendSuite):
    """Every case of every level, in an embedded database.

    Its write buffer is small, so that the memory that it fills by design is not taken for a leak.
    """

    @pytest.fixture
    def target(self, tmp_path: Path) -> Target:
        return Target(
            "aibrix",
            {"root": str(tmp_path / "db"), "connector": "rocksdb", "write_buffer_size": 64 << 10},
        )
