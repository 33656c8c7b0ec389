"""What goes in comes out, on the mounted path, with a metadata service, and through (emulated) USRBIO."""

import os
import threading

import numpy as np
import pytest
from hicache_hf3fs.backend import open_hf3fs
from hicache_hf3fs.options import Hf3fsOptions

from hicache_core.errors import MisuseError
from hicache_core.pools.host import make_host_pool
from hicache_core.storage.measure import bench_shape
from hicache_core.types import IoContext, OpenContext, Outcome, PoolName

HIT, MISS, STORED, EXISTS = Outcome.HIT, Outcome.MISS, Outcome.STORED, Outcome.EXISTS


def test_pages_come_back_and_are_told_of(any_store):
    keys = [any_store.key(n) for n in range(5)]
    assert any_store.exists(*keys) == 0
    assert any_store.set(*keys) == [STORED] * 5
    assert any_store.set(*keys, value=b"w" * 1000) == [EXISTS] * 5
    assert any_store.exists(*keys, any_store.key(9)) == 5
    assert any_store.get(keys[3]) == (HIT, b"v" * 1000)
    assert any_store.get(any_store.key(9))[0] is MISS
    assert any_store.backend.batch_contains([any_store.key(9), *keys], IoContext()) == [False] + [True] * 5
    assert any_store.stored() == sorted(keys)


def test_another_length_is_corrupt(any_store):
    any_store.set(any_store.key(1))
    assert any_store.get(any_store.key(1), 999)[0] is Outcome.CORRUPT
    assert any_store.get(any_store.key(1), 1001)[0] is Outcome.CORRUPT


@pytest.mark.parametrize("count", [1, 128, 700])
def test_batches_of_every_size_with_pages_of_many_sizes(any_store, count):
    sizes = [(n * 7919) % 9000 + 1 for n in range(count)]
    pages = [[memoryview(os.urandom(64)), memoryview(os.urandom(size))] for size in sizes]
    keys = [any_store.key(n) for n in range(count)]
    assert any_store.backend.batch_set(keys, pages, IoContext()) == [STORED] * count
    order = sorted(range(count), key=lambda n: hash(keys[n]))
    back = [[memoryview(bytearray(64)), memoryview(bytearray(sizes[n]))] for n in order]
    assert any_store.backend.batch_get([keys[n] for n in order], back, IoContext()) == [HIT] * count
    assert all(page[1] == pages[n][1] and page[0] == pages[n][0] for n, page in zip(order, back, strict=True))


def test_a_key_that_comes_twice_in_a_batch(any_store):
    a, b = any_store.key(1), any_store.key(2)
    assert any_store.set(a, b, a) == [STORED, STORED, EXISTS]
    pages = [[memoryview(bytes([n]) * 50)] for n in range(3)]
    assert any_store.backend.batch_set([a, b, a], pages, IoContext(replace=True)) == [STORED] * 3
    back = [[memoryview(bytearray(50))] for _ in range(4)]
    assert any_store.backend.batch_get([a, b, a, a], back, IoContext()) == [HIT] * 4
    assert [page[0][0] for page in back] == [2, 1, 2, 2]


def test_replace_also_by_another_size(any_store):
    key = any_store.key(1)
    any_store.set(key)
    assert any_store.set(key, value=b"n" * 5000, replace=True) == [STORED]
    assert any_store.get(key, 5000) == (HIT, b"n" * 5000)
    assert any_store.totals.pages == 1
    assert any_store.totals.slots_free == 1


def test_delete_and_clear(any_store):
    keys = [any_store.key(n) for n in range(4)]
    other = any_store.key(1, "f" * 32)
    any_store.set(*keys, other)
    assert any_store.delete(keys[0], any_store.key(9), keys[0], "../x") == [HIT, MISS, MISS, MISS]
    assert any_store.get(keys[0])[0] is MISS
    assert any_store.backend.clear(keys[0].partition("/")[0]) == 3
    assert any_store.stored() == [other]
    assert any_store.backend.clear("../x") == 0
    assert any_store.totals.slots_reserved == 0


def test_scan_is_paged_and_knows_namespaces(store):
    keys = sorted([f"ns/{n}" for n in range(2500)] + ["ns", "ns-b/1", "n/1", "ns/x/y"])
    store.set(*keys, value=b"x")
    assert store.stored() == keys
    assert store.stored("ns") == sorted(key for key in keys if key == "ns" or key.startswith("ns/"))
    assert store.stored("ns/x") == []


@pytest.mark.parametrize(
    "key", ["", "a//b", "/a", "a/", "a/../b", "A", "a b", "a\nb", "a/b\nc/d", "ä", "\ud800", "x" * 201]
)
def test_illegal_keys_touch_nothing(store, key):
    good = store.key(1)
    assert store.set(key, good) == [Outcome.REJECTED, STORED]
    assert store.get(key)[0] is MISS
    assert store.exists(key) == 0
    assert store.delete(key) == [MISS]
    assert store.stored() == [good]


def test_v1_moves_pages_of_a_registered_pool(any_store):
    geometry, _ = bench_shape(16 << 10)
    pool = make_host_pool(geometry, "page_first", 40)
    pool.buffer.reshape(-1)[:] = np.random.default_rng(3).integers(0, 256, pool.buffer.size, dtype=np.uint8)
    backend = any_store.backend
    backend.register_host_pool(pool)
    source, target = np.arange(20)[::-1].copy(), np.arange(20, 40)
    keys = [any_store.key(n) for n in range(20)]
    seals = [memoryview(bytearray(os.urandom(64))) for _ in keys]
    back = [memoryview(bytearray(64)) for _ in keys]
    assert backend.batch_set_v1(keys, source, IoContext(seals=seals)) == [STORED] * 20
    assert backend.batch_get_v1(keys, target, IoContext(seals=back)) == [HIT] * 20
    assert back == seals
    for a, b in zip(pool.pages(source), pool.pages(target), strict=True):
        assert a == b
    backend.unregister_host_pool(pool)
    with pytest.raises(MisuseError, match=f"{PoolName.KV.name} host pool"):
        backend.batch_get_v1(keys, target, IoContext(seals=back))


def test_neighbouring_slots_are_moved_together(store, monkeypatch):
    calls = []
    real = os.pwritev, os.preadv
    monkeypatch.setattr(os, "pwritev", lambda *a: calls.append("w") or real[0](*a))
    monkeypatch.setattr(os, "preadv", lambda *a: calls.append("r") or real[1](*a))
    keys = [store.key(n) for n in range(100)]
    store.set(*keys)
    back = [[memoryview(bytearray(64)), memoryview(bytearray(1000))] for _ in keys]
    assert store.backend.batch_get(keys[::-1], back, IoContext()) == [HIT] * 100
    assert calls == ["w"] * 4 + ["r"] * 4, "32 neighbours at a time"


def test_one_bad_page_does_not_fail_its_neighbours(store, monkeypatch):
    keys = [store.key(n) for n in range(10)]
    real = os.pwritev

    def fail_over(fd, buffers, offset):
        end = offset + sum(b.nbytes for b in buffers)
        if offset <= 4 * 4096 < end:
            raise OSError(5, "bad block")
        return real(fd, buffers, offset)

    monkeypatch.setattr(os, "pwritev", fail_over)
    outcomes = store.set(*keys)
    assert outcomes == [STORED] * 4 + [Outcome.UNAVAILABLE] + [STORED] * 5
    assert store.totals.slots_reserved == 0
    assert "bad block" in store.backend.stats().last_error


def test_a_file_cut_short_is_corrupt(store):
    keys = [store.key(n) for n in range(4)]
    store.set(*keys)
    os.truncate(store.root / "slots" / "4096.0", 2 * 4096 + 500)
    assert [store.get(key)[0] for key in keys] == [HIT, HIT, Outcome.CORRUPT, Outcome.CORRUPT]


def test_a_passed_deadline(any_store):
    any_store.set(any_store.key(1))
    page = [[memoryview(bytearray(1064))]]
    for hook in (any_store.backend.batch_get, any_store.backend.batch_set):
        assert hook([any_store.key(1)], page, IoContext(deadline=0.0, replace=True)) == [Outcome.TIMEOUT]
    assert any_store.set(any_store.key(1)) == [EXISTS]


def test_nothing_is_left_after_close(any_store, tmp_path):
    any_store.set(any_store.key(1))
    options = any_store.backend
    descriptors = len(os.listdir("/proc/self/fd"))
    threads = threading.active_count()
    options.close()
    options.close()
    assert len(os.listdir("/proc/self/fd")) < descriptors
    assert threading.active_count() == threads
    with pytest.raises(MisuseError):
        any_store.set(any_store.key(2))


def test_twenty_cycles_leave_no_descriptor(root):
    def cycle(n):
        backend = open_hf3fs(Hf3fsOptions(root=str(root), max_size=1 << 20), OpenContext(namespace="0" * 32))
        backend.batch_set([f"ns/{n}"], [[memoryview(bytes(5000))]], IoContext())
        backend.batch_get([f"ns/{n}"], [[memoryview(bytearray(5000))]], IoContext())
        backend.close()

    cycle(0)
    before = len(os.listdir("/proc/self/fd"))
    for n in range(20):
        cycle(n)
    assert len(os.listdir("/proc/self/fd")) == before
    assert os.listdir(root / "owners") == []
