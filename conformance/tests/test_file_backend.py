"""The pytest door on the file plugin: all three levels, on a store that a person might have."""

import pytest
from hicache_conformance import BackendSuite, Target

pytest.importorskip("hicache_file", reason="the plugin hicache-file is not installed")


class TestFile(BackendSuite):
    """Every case of every level."""

    @pytest.fixture
    def target(self, tmp_path):
        return Target("file", {"root": str(tmp_path / "store")})
