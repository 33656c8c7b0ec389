"""The bare client of `make bench-backends`: AIBrix's connectors give back what they took."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hicache_aibrix.bare_client import CASES

from hicache_core.plugin.bare_clients import BareCase, backends_with_bare_clients, bare_cases
from hicache_core.plugin.select import choose_backend

KEYS = [f"{'0' * 32}/{n:064x}.kv.l0-1h0-1" for n in range(3)]
pytestmark = pytest.mark.filterwarnings("ignore:The given buffer is not writable:UserWarning")  # AIBrix's own reading


def test_it_is_offered_and_asks_for_no_share() -> None:
    assert "aibrix" in backends_with_bare_clients()
    assert [(case.variant, case.at_least) for case in bare_cases("aibrix")] == [("SHFS", 0), ("ROCKSDB", 0)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.variant)
def test_it_moves_each_page_whole(case: BareCase, tmp_path: Path) -> None:
    memory = np.random.default_rng(1).integers(0, 256, (6, 8192), dtype=np.uint8)
    memory[3:] = 0
    with case.store(tmp_path, 1 << 20) as options:
        assert choose_backend("aibrix", dict(options)).spec.name == "aibrix"
        client = case.client(options, memory)
        try:
            client.put(KEYS, [0, 1, 2])
            kept = memory[:3].copy()
            client.get(KEYS[::-1], [3, 4, 5])
            assert np.array_equal(memory[3:], kept[::-1])
            memory[:3] = 0
            client.get(KEYS, [0, 1, 2])  # from the store, not from the memory it was put from
            assert np.array_equal(memory[:3], kept)
            client.remove(KEYS[:1])
            with pytest.raises(OSError, match="NOT_FOUND"):
                client.get(KEYS, [0, 1, 2])
        finally:
            client.close()


def test_what_is_stored_is_whole_and_on_disk(tmp_path: Path) -> None:
    memory = np.arange(2 * 4096, dtype=np.uint32).view(np.uint8)[: 2 * 4096].reshape(2, 4096).copy()
    (shfs, _) = CASES
    with shfs.store(tmp_path, 1 << 20) as options:
        client = shfs.client(options, memory)
        client.put(KEYS[:1], [1])
        client.close()
        [stored] = [path for path in Path(f"{options['root']}-bare").rglob("*") if path.is_file()]
    assert stored.read_bytes() == memory[1].tobytes()


def test_a_page_of_another_length_is_refused(tmp_path: Path) -> None:
    for case in CASES:
        with case.store(tmp_path / case.variant, 1 << 20) as options:
            client = case.client(options, np.zeros((1, 4096), np.uint8))
            client.put(KEYS[:1], [0])
            client.close()
            other = case.client(options, np.zeros((1, 8192), np.uint8))
            with pytest.raises((OSError, AssertionError)):  # RocksDB's asserts it
                other.get(KEYS[:1], [0])
            other.close()
