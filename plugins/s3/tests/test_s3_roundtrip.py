"""What goes in comes out, on a real server, a directory and memory alike."""

import time

import pytest

from hicache_core.errors import MisuseError
from hicache_core.types import IoContext, Outcome

NS = "0123456789abcdef" * 2


def test_set_get_exists_contains_delete(any_store):
    a, b, c = (any_store.key(n) for n in range(3))
    assert any_store.set(a, b) == [Outcome.STORED, Outcome.STORED]
    assert any_store.set(b, c) == [Outcome.EXISTS, Outcome.STORED]
    assert any_store.get(a) == (Outcome.HIT, b"v" * 1000)
    assert any_store.exists(a, b, any_store.key(9), c) == 2
    assert any_store.backend.batch_contains([any_store.key(9), a, c], IoContext()) == [False, True, True]
    assert any_store.delete(a, any_store.key(9), a) == [Outcome.HIT, Outcome.MISS, Outcome.MISS]
    assert any_store.get(a) == (Outcome.MISS, bytes(1000))


def test_empty_batches(any_store):
    assert any_store.exists() == 0
    assert any_store.backend.batch_contains([], IoContext()) == []
    assert any_store.backend.batch_get([], [], IoContext()) == []
    assert any_store.set() == []
    assert any_store.delete() == []


def test_a_key_twice_in_a_batch_is_stored_once_the_first_one_first(any_store):
    keys = [any_store.key(1)] * 3
    pages = [[memoryview(bytes([n]) * 100)] for n in range(3)]
    outcomes = any_store.backend.batch_set(keys, pages, IoContext())
    assert outcomes == [Outcome.STORED, Outcome.EXISTS, Outcome.EXISTS]
    out = bytearray(100)
    assert any_store.backend.batch_get(keys[:1], [[memoryview(out)]], IoContext()) == [Outcome.HIT]
    assert out == bytes(100)
    any_store.backend.batch_set(keys, pages, IoContext(replace=True))
    assert any_store.backend.batch_get(keys[:1], [[memoryview(out)]], IoContext()) == [Outcome.HIT]
    assert out == b"\2" * 100, "of several replacements of one key in a batch the last one stays"


def test_an_existing_key_keeps_its_bytes_and_replace_swaps_them(any_store):
    key = any_store.key(1)
    any_store.set(key, value=b"old")
    assert any_store.set(key, value=b"new") == [Outcome.EXISTS]
    assert any_store.get(key, 3) == (Outcome.HIT, b"old")
    assert any_store.set(key, value=b"newer", replace=True) == [Outcome.STORED]
    assert any_store.get(key, 5) == (Outcome.HIT, b"newer")
    assert any_store.set(any_store.key(2), value=b"first", replace=True) == [Outcome.STORED]


@pytest.mark.parametrize("stored", [0, 1, 999, 1001, 5000])
def test_any_other_length_is_corrupt_and_touches_nothing(any_store, stored):
    key = any_store.key(1)
    any_store.backend.batch_set([key], [[memoryview(b"x" * (64 + stored))]], IoContext())
    assert any_store.get(key) == (Outcome.CORRUPT, bytes(1000))
    assert any_store.set(key, replace=True) == [Outcome.STORED]
    assert any_store.get(key)[0] is Outcome.HIT


def test_lengths_tell_what_was_stored_in_larger_pages(any_store):
    key = any_store.key(1)
    any_store.set(key, value=b"abc")
    lengths = [0]
    assert any_store.get(key, 10, lengths=lengths) == (Outcome.HIT, b"abc" + bytes(7))
    assert lengths == [67]
    assert any_store.get(key, 2, lengths=lengths)[0] is Outcome.CORRUPT


def test_pages_of_many_buffers_and_of_none(any_store):
    source = bytes(range(256)) * 10
    page = [memoryview(source)[at : at + 7] for at in range(0, len(source), 7)]
    page.insert(3, memoryview(b""))
    assert any_store.backend.batch_set([any_store.key(1)], [page], IoContext()) == [Outcome.STORED]
    target = bytearray(len(source))
    out = [memoryview(target)[at : at + 500] for at in range(0, len(source), 500)]
    assert any_store.backend.batch_get([any_store.key(1)], [out], IoContext()) == [Outcome.HIT]
    assert target == source
    assert any_store.backend.batch_set([any_store.key(2)], [[]], IoContext()) == [Outcome.STORED]
    assert any_store.backend.batch_get([any_store.key(2)], [[]], IoContext()) == [Outcome.HIT]
    assert any_store.get(any_store.key(2))[0] is Outcome.CORRUPT


def test_nothing_is_done_after_the_deadline(any_store):
    past = time.monotonic() - 1
    key = any_store.key(1)
    assert any_store.set(key, deadline=past) == [Outcome.TIMEOUT]
    any_store.set(key)
    assert any_store.get(key, deadline=past) == (Outcome.TIMEOUT, bytes(1000))


def test_bytes_moved_are_counted_not_bytes_asked_for(any_store):
    any_store.set(any_store.key(1), any_store.key(2))
    any_store.set(any_store.key(1))
    any_store.get(any_store.key(1))
    any_store.get(any_store.key(3))
    stats = any_store.backend.stats()
    assert (stats.bytes_written, stats.bytes_read, stats.errors) == (2128, 1064, 0)


def test_clear_removes_only_its_namespace(any_store):
    other = "f" * 32
    mine = [any_store.key(1), f"{NS}/a", f"{NS}/a/b", NS]
    others = [any_store.key(1, other), f"{NS}0/a", NS[:-1], f"x/{NS}"]
    assert all(any_store.set(*mine, *others))
    assert any_store.backend.clear(NS) == len(mine)
    assert sorted(any_store.stored()) == sorted(others)
    assert any_store.set(*mine) == [Outcome.STORED] * 4
    assert any_store.backend.clear("0" * 32) == 0
    assert any_store.backend.clear(f"{NS}/a") == 0


@pytest.fixture
def short_listings(monkeypatch):
    monkeypatch.setattr("hicache_s3.obstore_client.LISTED", 10)
    monkeypatch.setattr("hicache_s3.fsspec_client.LISTED", 10)


@pytest.mark.usefixtures("short_listings")
def test_scan_lists_every_page_once_with_length_and_time(any_store):
    keys = [any_store.key(n) for n in range(25)] + [any_store.key(n, "a") for n in range(12)]
    any_store.set(*keys)
    assert sorted(any_store.stored()) == sorted(keys)
    assert sorted(any_store.stored("a")) == sorted(keys[25:])
    entries, cursor = any_store.backend.scan(NS, None)
    assert len(entries) == 10
    assert cursor is not None
    assert all(nbytes == 1064 for _, nbytes, _ in entries)
    assert all(abs(mtime - time.time()) < 3600 for _, _, mtime in entries)
    assert any_store.backend.scan("b", None) == ([], None)
    assert any_store.backend.scan("..", None) == ([], None)
    assert any_store.backend.clear(NS) == 25


@pytest.mark.usefixtures("short_listings")
def test_scan_goes_on_where_it_was_when_pages_go(any_store):
    keys = [any_store.key(n) for n in range(25)]
    any_store.set(*keys)
    entries, cursor = any_store.backend.scan(None, None)
    seen = [key for key, _, _ in entries]
    any_store.delete(*seen)
    while cursor is not None:
        entries, cursor = any_store.backend.scan(None, cursor)
        seen += [key for key, _, _ in entries]
    assert sorted(seen) == sorted(keys)


def test_an_object_that_is_no_page_is_neither_listed_nor_removed(open_store, store):
    store.set(store.key(1))
    names = (f"{NS}/Notes.TXT", f"{NS}/a/b", "readme", f"{NS}/a++b")
    for name in names:
        store.backend._store.client.replace(store.backend._store.prefix + name, b"mine")
    assert store.stored() == [store.key(1)]
    assert store.backend.clear(NS) == 1
    left = store.backend._store.client.entries(store.backend._store.prefix.rstrip("/"), None)[0]
    kept = {entry.path.removeprefix(store.backend._store.prefix) for entry in left}
    assert kept == {*names, "+hicache/first-writer"}


def test_the_root_of_a_bucket_is_a_place_too(open_at, server):
    store = open_at(**{**server.options, "url": "s3://kvcache"})
    key = store.key(1, "e" * 32)
    assert store.set(key) == [Outcome.STORED]
    assert store.stored("e" * 32) == [key]
    assert key in store.stored()
    assert store.backend.clear("e" * 32) == 1


def test_close_is_idempotent_and_calls_after_it_are_misuse(any_store):
    any_store.set(any_store.key(1))
    any_store.backend.close()
    any_store.backend.close()
    with pytest.raises(MisuseError):
        any_store.exists(any_store.key(1))
