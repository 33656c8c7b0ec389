"""Every layout, kind of cache and kind of device pool, against one row at a time."""

from __future__ import annotations

import numpy as np
import pytest

from hicache_core.errors import ConfigError
from hicache_core.pools import naive
from hicache_core.pools.geometry import KVGeometry
from hicache_core.pools.host import make_host_pool
from hicache_core.pools.layouts import LAYOUTS
from hicache_core.transfer import cpu
from hicache_core.transfer.backends import make_copier
from hicache_core.transfer.cpu import runs

PAIRS = [
    ([8, 0, 5, 2], [1, 6, 0, 3]),  # scattered
    ([2, 3, 4, 5], [3, 4, 5, 6]),  # consecutive
    ([2, 3, 4, 7], [6, 2, 3, 4]),  # in part
    ([5, 4, 3], [2, 1, 0]),  # backwards
    ([7], [2]),
    ([], []),
]


def as_slots(pair: tuple[list[int], list[int]]) -> tuple[np.ndarray, np.ndarray]:
    return np.array(pair[0], dtype=np.int64), np.array(pair[1], dtype=np.int64)


def test_backup_moves_those_rows_and_no_other(geometry, layout, host, copier):
    mover, device = copier
    before = [array.copy() for array in device.byte_arrays()]
    for pair in PAIRS:
        host.buffer[:] = 0xAA
        want = host.buffer.copy()
        for to, come in zip(*pair, strict=True):
            naive.backup(geometry, layout, host.num_pages, want, device.byte_arrays(), to, come)
        mover.backup(*as_slots(pair), None)
        assert (host.buffer == want).all(), pair
    assert all((a == b).all() for a, b in zip(before, device.byte_arrays(), strict=True))


def test_load_moves_one_layer_of_those_pages_and_no_other(geometry, layout, host, copier):
    mover, device = copier
    host.buffer[:] = np.random.default_rng(2).integers(0, 256, host.nbytes, dtype=np.uint8)
    before = host.buffer.copy()
    for pair in PAIRS:
        for array in device.byte_arrays():
            array[:] = 0xAA
        want = tuple(array.copy() for array in device.byte_arrays())
        for layer in reversed(range(geometry.layer_num)):
            for come, to in zip(*pair, strict=True):
                naive.load_layer(geometry, layout, host.num_pages, before, want, come, to, layer)
            mover.load_layer(layer, *as_slots(pair), None)
            mover.finish_load()
            assert all((a == b).all() for a, b in zip(want, device.byte_arrays(), strict=True)), pair
    assert (host.buffer == before).all()


def test_there_and_back_through_stored_pages(geometry, layout, host, copier):
    """L1 → L2 → flat bytes (what L3 keeps) → other L2 pages → other L1 pages: the same page."""
    mover, device = copier
    pages = [device.read_page(slot) for slot in (1, 5)]
    mover.backup(np.array([4, 2]), np.array([1, 5]), None)
    stored = [host.get_data_page(slot).tobytes() for slot in (4, 2)]
    host.buffer[:] = 0
    for slot, flat in zip((7, 0), stored, strict=True):
        host.set_from_flat_data_page(slot, flat)
    for layer in range(geometry.layer_num):
        mover.load_layer(layer, np.array([7, 0]), np.array([3, 6]), None)
    mover.finish_load()
    assert [device.read_page(slot) for slot in (3, 6)] == pages


def test_direct_moves_the_same_bytes(geometry, layout, host, device):
    slots = np.array([8, 0, 5]), np.array([1, 6, 0])
    if not LAYOUTS[layout].whole_pages:
        with pytest.raises(ConfigError, match=r"use layout layer_first or page_first_direct, or io backend 'kernel'"):
            make_copier(host, device, "direct")
        return
    make_copier(host, device, "direct").backup(*slots, None)
    direct = host.buffer.copy()
    host.buffer[:] = 0xAA
    make_copier(host, device, "kernel").backup(*slots, None)
    assert (host.buffer == direct).all()


def test_rows_are_as_long_as_both_sides_allow():
    """The cost model counts on whole pages of a layer in the layouts that keep them together."""
    from hicache_core.pools.device import NumpyDevicePool

    geometry = KVGeometry("mha", 3, 2, 4, dtype="float32", page_size=4)
    lengths = {}
    for layout in ("layer_first", "page_first", "page_first_direct", "page_head"):
        pool = make_host_pool(geometry, layout, 4, huge_pages="off")
        lanes = cpu.lanes_between(pool, NumpyDevicePool(geometry, 4))
        lengths[layout] = lanes[0].host_rows.dtype.itemsize
        del lanes
        pool.close()
    assert lengths == {"layer_first": 128, "page_first": 32, "page_first_direct": 128, "page_head": 16}


def test_runs():
    assert runs(np.array([1, 2, 3, 7, 8, 4]), np.array([5, 6, 7, 8, 9, 10])) == [(1, 5, 3), (7, 8, 2), (4, 10, 1)]
    assert runs(np.array([1, 2]), np.array([2, 1])) == [(1, 2, 1), (2, 1, 1)]
    assert runs(np.empty(0, np.int64), np.empty(0, np.int64)) == []


@pytest.mark.parametrize("way", ["runs", "scattered"])
def test_lent_memory_of_odd_alignment(monkeypatch, way):
    from hicache_core.pools.device import NumpyDevicePool

    monkeypatch.setattr(cpu, "RUN_BYTES", 1 if way == "runs" else 1 << 40)
    geometry = KVGeometry("mha", 3, 2, 4, dtype="float32", page_size=4)
    memory = np.zeros(4 * geometry.page_nbytes + 1, dtype=np.uint8)[1:]
    pool, device = make_host_pool(geometry, "page_first", 4, memory=memory), NumpyDevicePool(geometry, 4)
    page = np.random.default_rng(0).integers(0, 256, device.page_nbytes, dtype=np.uint8).tobytes()
    device.write_page(3, page)
    mover = make_copier(pool, device, "kernel")
    mover.backup(np.array([2]), np.array([3]), None)
    assert pool.get_data_page(2).tobytes() == page
    for layer in range(3):
        mover.load_layer(layer, np.array([2]), np.array([0]), None)
    assert device.read_page(0) == page
