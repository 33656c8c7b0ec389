"""What goes in comes out, from and into the caller's buffers, and nothing else does."""

import os
import time

import pytest
from hicache_file import pageio

from hicache_core.errors import MisuseError
from hicache_core.types import IoContext, Outcome

NS = "0123456789abcdef" * 2


def test_set_get_exists_contains_delete(store):
    a, b, c = (store.key(n) for n in range(3))
    assert store.set(a, b) == [Outcome.STORED, Outcome.STORED]
    assert store.set(b, c) == [Outcome.EXISTS, Outcome.STORED]
    assert store.get(a) == (Outcome.HIT, b"v" * 1000)
    assert store.backend.batch_exists([a, b, store.key(9), c], IoContext()) == 2
    assert store.backend.batch_contains([store.key(9), a, c], IoContext()) == [False, True, True]
    assert store.delete(a, store.key(9), a) == [Outcome.HIT, Outcome.MISS, Outcome.MISS]
    assert store.get(a) == (Outcome.MISS, bytes(1000))


def test_empty_batches(store):
    assert store.backend.batch_exists([], IoContext()) == 0
    assert store.backend.batch_get([], [], IoContext()) == []
    assert store.backend.batch_set([], [], IoContext()) == []
    assert store.delete() == []


def test_a_batch_with_a_key_twice_stores_it_once(store):
    assert store.set(store.key(1), store.key(1)) == [Outcome.STORED, Outcome.EXISTS]
    assert len(store.files()) == 1


def test_setting_an_existing_key_keeps_the_old_bytes_and_replace_swaps_them(store):
    store.set(store.key(1), value=b"old")
    assert store.set(store.key(1), value=b"new") == [Outcome.EXISTS]
    assert store.get(store.key(1), 3) == (Outcome.HIT, b"old")
    before = store.path(store.key(1)).stat().st_ino
    assert store.set(store.key(1), value=b"newer", replace=True) == [Outcome.STORED]
    assert store.get(store.key(1), 5) == (Outcome.HIT, b"newer")
    assert store.path(store.key(1)).stat().st_ino != before, "a page is never overwritten in place"
    assert store.set(store.key(2), value=b"first", replace=True) == [Outcome.STORED]


@pytest.mark.parametrize("stored", [0, 63, 1063, 1065, 5000])
def test_any_other_length_is_corrupt(store, stored):
    store.set(store.key(1))
    path = store.path(store.key(1))
    path.write_bytes(b"x" * stored)
    assert store.get(store.key(1)) == (Outcome.CORRUPT, bytes(1000))
    assert store.set(store.key(1), replace=True) == [Outcome.STORED]
    assert store.get(store.key(1))[0] is Outcome.HIT


@pytest.mark.parametrize("regions", [1, 60, 1023, 1024, 1025, 2500])
def test_any_number_of_regions_in_at_most_1024_a_call(store, regions, monkeypatch):
    calls = []
    real = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda fd, bufs, at: calls.append(len(bufs)) or real(fd, bufs, at))
    source = os.urandom(regions * 40)
    page = [memoryview(source)[i * 40 : (i + 1) * 40] for i in range(regions)]
    assert store.backend.batch_set([store.key(1)], [page], IoContext()) == [Outcome.STORED]
    target = bytearray(regions * 40)
    out = [memoryview(target)[i * 40 : (i + 1) * 40] for i in range(regions)]
    assert store.backend.batch_get([store.key(1)], [out], IoContext()) == [Outcome.HIT]
    assert target == source
    assert max(calls) <= 1024
    assert len(calls) == -(-regions // 1024)


def test_short_writes_and_reads_go_on_where_they_stopped(store, monkeypatch):
    write, read = os.pwritev, os.preadv
    monkeypatch.setattr(os, "pwritev", lambda fd, bufs, at: write(fd, [bufs[0][:7]], at))
    monkeypatch.setattr(os, "preadv", lambda fd, bufs, at: read(fd, [bufs[0][:11]], at))
    value = os.urandom(200)
    assert store.set(store.key(1), value=value) == [Outcome.STORED]
    assert store.get(store.key(1), 200) == (Outcome.HIT, value)
    assert store.path(store.key(1)).read_bytes() == b"s" * 64 + value


def test_an_empty_page(store):
    assert store.backend.batch_set([store.key(1)], [[]], IoContext()) == [Outcome.STORED]
    assert store.backend.batch_get([store.key(1)], [[]], IoContext()) == [Outcome.HIT]
    assert store.get(store.key(1)) == (Outcome.CORRUPT, bytes(1000))


def test_buffers_of_size_zero_among_others(store):
    page = [memoryview(b""), memoryview(b"ab"), memoryview(b""), memoryview(b"c")]
    store.backend.batch_set([store.key(1)], [page], IoContext())
    out = bytearray(3)
    assert store.backend.batch_get([store.key(1)], [[memoryview(out)]], IoContext()) == [Outcome.HIT]
    assert out == b"abc"


def test_nothing_is_started_after_the_deadline(store):
    past = time.monotonic() - 1
    page = [memoryview(bytearray(10))]
    assert store.backend.batch_set([store.key(1)], [page], IoContext(deadline=past)) == [Outcome.TIMEOUT]
    assert store.backend.batch_get([store.key(1)], [page], IoContext(deadline=past)) == [Outcome.TIMEOUT]
    assert store.files() == []


def test_bytes_moved_are_counted_not_bytes_asked_for(store):
    store.set(store.key(1), store.key(1))
    store.get(store.key(1))
    store.get(store.key(2))
    stats = store.backend.stats()
    assert stats.bytes_read == 1064
    assert stats.bytes_written in (1064, 2128), "the second copy may be written before it is found to be there"
    assert stats.files == 1


def test_clear_removes_only_its_namespace(store):
    other = "f" * 32
    store.set(store.key(1), store.key(2), store.key(1, other))
    assert store.backend.clear(NS) == 2
    assert store.stored() == [store.key(1, other)]
    assert not (store.root / NS).exists()
    assert store.set(store.key(1)) == [Outcome.STORED], "its directories are made again"
    assert store.backend.clear("0" * 32) == 0


def test_a_directory_removed_by_another_process_is_made_again(open_store):
    one, two = open_store(), open_store()
    one.set(one.key(1))
    two.backend.clear(NS)
    assert one.set(one.key(1)) == [Outcome.STORED]
    two.backend.clear(NS)
    assert one.set(one.key(1), replace=True) == [Outcome.STORED]
    assert two.get(one.key(1))[0] is Outcome.HIT


def test_scan_lists_every_page_once_with_length_and_time(store, monkeypatch):
    monkeypatch.setattr("hicache_file.listing.SCAN_ENTRIES", 10)
    keys = [store.key(n) for n in range(100)] + [store.key(n, "a") for n in range(50)]
    store.set(*keys)
    assert sorted(store.stored()) == sorted(keys)
    entries, cursor = store.backend.scan(NS, None)
    assert cursor is not None
    assert 10 <= len(entries) < 100
    name, nbytes, mtime = entries[0]
    assert nbytes == 1064
    assert mtime == pytest.approx(store.path(name).stat().st_mtime, abs=1e-3)
    assert store.backend.scan("b", None) == ([], None)


def test_scan_goes_on_where_it_was_when_pages_come_and_go(store, monkeypatch):
    monkeypatch.setattr("hicache_file.listing.SCAN_ENTRIES", 10)
    keys = [store.key(n) for n in range(60)]
    store.set(*keys)
    entries, cursor = store.backend.scan(None, None)
    seen = [key for key, _, _ in entries]
    store.delete(*seen)
    while cursor is not None:
        entries, cursor = store.backend.scan(None, cursor)
        seen += [key for key, _, _ in entries]
    assert sorted(seen) == sorted(keys)


def test_close_is_idempotent_and_calls_after_it_are_misuse(store):
    store.backend.close()
    store.backend.close()
    with pytest.raises(MisuseError):
        store.backend.batch_exists([store.key(1)], IoContext())


def test_page_buffers_after_a_part_was_moved():
    buffers = [memoryview(b"abc"), memoryview(b"de"), memoryview(b"f")]
    for moved in range(7):
        rest = pageio._after(buffers, moved)
        assert b"".join(rest) == b"abcdef"[moved:]
