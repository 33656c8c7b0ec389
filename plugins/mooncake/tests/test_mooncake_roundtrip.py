"""Pages through every path of a real store: whose memory is this process's, and another's."""

import numpy as np
import pytest
from hicache_mooncake.bounce import CALL_PARTS, PAGE_PARTS

from hicache_core.pools.geometry import KVGeometry
from hicache_core.pools.host import make_host_pool
from hicache_core.types import IoContext, Outcome, PoolName, PoolTransfer

HIT, MISS, STORED, CORRUPT, REJECTED = (
    Outcome.HIT,
    Outcome.MISS,
    Outcome.STORED,
    Outcome.CORRUPT,
    Outcome.REJECTED,
)


@pytest.fixture(params=["two processes", "embedded"])
def handle(request, connect, serve):
    if request.param == "two processes":
        return connect()
    return connect(**serve(owners=0, segment_bytes=256 << 20).options)


def test_pages_come_back(handle):
    keys = handle.keys(5)
    assert handle.set(keys, 7) == [STORED] * 5
    assert handle.get(keys[3]) == (HIT, {7})
    assert handle.there([*keys, *handle.keys(1)]) == [True] * 5 + [False]
    assert handle.backend.batch_exists(keys, IoContext()) == 5


def test_a_miss_leaves_the_page_alone(handle):
    [key] = handle.keys(1)
    assert handle.get(key) == (MISS, {0xAA})


@pytest.mark.parametrize("size", [2048, 8192])
def test_another_length_is_corrupt(handle, size):
    [key] = handle.keys(1)
    handle.set([key], size=4096)
    assert handle.get(key, size)[0] is CORRUPT


def test_the_first_writer_wins_and_the_second_is_not_told(handle):
    [key] = handle.keys(1)
    assert handle.set([key], 1) == [STORED]
    assert handle.set([key], 2) == [STORED]
    assert handle.get(key) == (HIT, {1})


def test_replace_and_delete_are_not_held_up_by_the_leases_of_readers(handle):
    [key] = handle.keys(1)
    handle.set([key], 1)
    assert handle.there([key]) == [True]
    assert handle.get(key)[0] is HIT
    assert handle.set([key], 2, replace=True) == [STORED]
    assert handle.get(key) == (HIT, {2})
    assert handle.backend.delete([key, key], IoContext()) == [HIT, MISS]
    assert handle.get(key)[0] is MISS


def test_equal_keys_of_one_batch_are_all_filled(handle):
    [key] = handle.keys(1)
    pages = [handle.page(3), handle.page(4)]
    assert handle.backend.batch_set([key, key], pages, IoContext()) == [STORED, STORED]
    pages = [handle.page(0xAA) for _ in range(3)]
    assert handle.backend.batch_get([key] * 3, pages, IoContext()) == [HIT] * 3
    assert [set(b"".join(page)) for page in pages] == [{3}] * 3


def test_illegal_keys_touch_nothing(handle):
    [good] = handle.keys(1)
    bad = ["", "a b", "../x", "A/b", "x" * 201]
    assert handle.set([*bad, good], 5) == [REJECTED] * 5 + [STORED]
    assert handle.there([*bad, good]) == [False] * 5 + [True]
    assert handle.backend.delete(bad, IoContext()) == [MISS] * 5
    assert handle.backend.clear("a/b") == 0


def test_a_batch_of_more_parts_than_the_sdk_queues(handle):
    keys = handle.keys(3 * CALL_PARTS)
    assert set(handle.set(keys, 9, 64)) == {STORED}
    assert handle.backend.batch_exists(keys, IoContext()) == len(keys)
    assert handle.get(keys[-1], 64) == (HIT, {9})


def test_a_page_of_many_parts_is_one_object(handle):
    [key] = handle.keys(1)
    data = np.random.default_rng(1).integers(0, 256, 5000, np.uint8)
    cuts = [memoryview(part) for part in np.array_split(data, 40 * PAGE_PARTS)]
    assert handle.backend.batch_set([key], [cuts], IoContext()) == [STORED]
    back = np.zeros_like(data)
    assert handle.backend.batch_get([key], [[back.data[:100], back.data[100:]]], IoContext()) == [HIT]
    assert np.array_equal(back, data)


@pytest.mark.parametrize("layout", ["page_first", "layer_first", "page_head"])
def test_registered_pools_by_v1_and_v2(handle, layout):
    pool = make_host_pool(KVGeometry("mha", 12, 2, 8, page_size=16), layout, 6)
    pool.buffer[:] = np.random.default_rng(2).integers(0, 256, pool.nbytes, np.uint8)
    want = [pool.get_data_page(slot) for slot in (4, 1)]
    handle.backend.register_host_pool(pool)
    seals = [memoryview(bytearray([n] * 64)) for n in (1, 2)]
    keys, slots = handle.keys(2), np.array([4, 1])
    assert handle.backend.batch_set_v1(keys, slots, IoContext(seals=seals)) == [STORED] * 2
    pool.buffer[:] = 0xAA
    got = [memoryview(bytearray(64)) for _ in keys]
    assert handle.backend.batch_get_v1(keys, np.array([0, 5]), IoContext(seals=got)) == [HIT] * 2
    assert [bytes(seal) for seal in got] == [bytes([n] * 64) for n in (1, 2)]
    assert all(np.array_equal(pool.get_data_page(slot), page) for slot, page in zip((0, 5), want, strict=True))
    transfer = PoolTransfer(PoolName.KV, [*handle.keys(1), keys[1]], np.array([2, 3]))
    answer = handle.backend.batch_get_v2([transfer], IoContext(seals={PoolName.KV: got}))
    assert answer == {PoolName.KV: [MISS, HIT]}
    assert np.array_equal(pool.get_data_page(3), want[1])
    assert set(pool.get_data_page(2)) == {0xAA}
    handle.backend.unregister_host_pool(pool)


def test_clear_takes_one_namespace_and_scan_shows_it(handle):
    mine, other = "a.b" + "0" * 29, "axb" + "0" * 29
    keys, others = handle.keys(3, mine), handle.keys(2, other)
    handle.set([*keys, *others])
    entries, cursor = handle.backend.scan(mine, None)
    assert ([entry[:2] for entry in entries], cursor) == ([(key, 4160) for key in sorted(keys)], None)
    assert handle.backend.clear(mine) == 3
    assert handle.there([*keys, *others]) == [False] * 3 + [True] * 2
    assert handle.backend.clear(other) == 2


def test_stats_tell_bytes_moved(handle):
    keys = handle.keys(2)
    handle.set(keys)
    handle.get(keys[0])
    handle.get(handle.keys(1)[0])
    stats = handle.backend.stats()
    assert (stats.pages_written, stats.bytes_written) == (2, 2 * 4160)
    assert (stats.pages_read, stats.bytes_read) == (1, 4160)
    assert stats.master_keys >= 2
    assert stats.capacity_bytes >= 256 << 20
