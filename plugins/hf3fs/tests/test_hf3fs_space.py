"""Slots: what they may take together, which pages make room, and that counts add up whatever happens."""

import os
import sqlite3
from contextlib import closing

import pytest
from hicache_hf3fs.backend import open_hf3fs
from hicache_hf3fs.index.schema import DATABASE
from hicache_hf3fs.options import Hf3fsOptions
from hypothesis import given, settings
from hypothesis import strategies as st

from hicache_core.types import IoContext, OpenContext, Outcome

SLOT = 4096
STORED, REJECTED = Outcome.STORED, Outcome.REJECTED


def age(store, *numbers):
    """Make pages look as if they were last used long ago, the first longest."""
    with closing(sqlite3.connect(store.root / DATABASE, isolation_level=None)) as connection:
        for place, number in enumerate(numbers):
            connection.execute("UPDATE pages SET used = ? WHERE key = ?", (1000.0 + place, store.key(number)))


def check_counts(root):
    """Every slot ever made is a page, held or free, and none is two of them."""
    with closing(sqlite3.connect(root / DATABASE)) as connection:
        slots = [
            set(connection.execute(f"SELECT slot_bytes, slot FROM {table}")) for table in ("pages", "held", "free")
        ]
        made = {
            (size, slot)
            for size, extent in connection.execute("SELECT slot_bytes, extent FROM classes")
            for slot in range(extent)
        }
        hollow = connection.execute("SELECT count(*) FROM free WHERE hollow = 1").fetchone()[0]
        solid = connection.execute("SELECT coalesce(sum(solid), 0) FROM classes").fetchone()[0]
        held = connection.execute("SELECT coalesce(sum(slot_bytes * solid), 0) FROM classes").fetchone()[0]
    assert sum(map(len, slots)) == len(made)
    assert set.union(*slots) == made
    assert solid == len(made) - hollow
    return held, len(slots[1])


def test_the_pages_longest_unused_make_room(open_store):
    store = open_store(max_size=4 * SLOT)
    store.set(*[store.key(n) for n in range(4)])
    age(store, 2, 0, 1, 3)
    assert store.set(store.key(4), store.key(5)) == [STORED] * 2
    assert store.numbers() == [1, 3, 4, 5]
    assert store.totals.bytes_held == 4 * SLOT
    assert store.totals.slots == 4, "slots are used again"


def test_a_hit_and_being_offered_again_are_uses(open_store):
    store = open_store(max_size=4 * SLOT)
    store.set(*[store.key(n) for n in range(4)])
    age(store, 0, 1, 2, 3)
    store.get(store.key(0))
    store.set(store.key(1))
    store.set(store.key(4), store.key(5))
    assert store.numbers() == [0, 1, 4, 5]


def test_of_a_batch_that_does_not_fit_the_start_is_stored(open_store):
    store = open_store(max_size=4 * SLOT)
    store.set(store.key(99))
    outcomes = store.set(*[store.key(n) for n in range(7)])
    assert outcomes == [STORED] * 4 + [REJECTED] * 3
    assert store.numbers() == [0, 1, 2, 3]
    assert store.backend.stats().rejected == 3


def test_what_a_batch_calls_exists_is_not_evicted_for_its_rest(open_store):
    store = open_store(max_size=4 * SLOT)
    store.set(*[store.key(n) for n in range(4)])
    age(store, 0, 1, 2, 3)
    outcomes = store.set(*[store.key(n) for n in (0, 1, 4, 5)])
    assert outcomes == [Outcome.EXISTS] * 2 + [STORED] * 2
    assert store.numbers() == [0, 1, 4, 5]


def test_a_page_larger_than_the_store_is_refused_and_costs_nothing(open_store):
    store = open_store(max_size=4 * SLOT)
    store.set(*[store.key(n) for n in range(4)])
    assert store.set(store.key(9), value=bytes(5 * SLOT)) == [REJECTED]
    assert len(store.numbers()) == 4


def test_pages_of_another_size_make_room_by_giving_back_their_blocks(open_store):
    store = open_store(max_size=64 * SLOT)
    store.set(*[store.key(n) for n in range(64)])
    large = 16 * SLOT - 64
    assert store.set(store.key(100), store.key(101), value=bytes(large)) == [STORED] * 2
    assert store.totals.bytes_held <= 64 * SLOT
    assert store.totals.pages == 32 + 2
    blocks = sum(path.stat().st_blocks * 512 for path in (store.root / "slots").iterdir())
    assert blocks <= 64 * SLOT
    assert store.get(store.key(100), large) == (Outcome.HIT, bytes(large))
    check_counts(store.root)


def test_where_blocks_cannot_be_given_back_only_pages_of_that_size_make_room(open_store, monkeypatch):
    def refuse(self, slot):
        self.can_punch = False
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("hicache_hf3fs.slotfiles.SlotFiles.punch", refuse)
    store = open_store(max_size=64 * SLOT)
    store.set(*[store.key(n) for n in range(64)])
    assert store.set(store.key(100), value=bytes(10 * SLOT)) == [REJECTED]
    assert store.set(store.key(101)) == [STORED]
    held, reserved = check_counts(store.root)
    assert held <= 64 * SLOT
    assert reserved == 0


def test_opening_with_a_smaller_cap_evicts(open_store):
    store = open_store()
    store.set(*[store.key(n) for n in range(10)])
    store.delete(store.key(9))
    age(store, *range(9))
    store.backend.close()
    again = open_store(max_size=5 * SLOT)
    assert again.numbers() == [4, 5, 6, 7, 8]
    assert check_counts(again.root) == (5 * SLOT, 0)


def test_clear_gives_the_blocks_back(store):
    store.set(*[store.key(n) for n in range(64)], value=bytes(50_000))
    paths = [store.root / "slots" / f"{13 * SLOT}.{n}" for n in range(2)]
    assert all(path.stat().st_blocks * 512 >= 32 * 50_000 for path in paths)
    store.backend.clear(store.key(0).partition("/")[0])
    assert [path.stat().st_blocks for path in paths] == [0, 0]
    assert store.totals.bytes_held == 0
    assert store.set(store.key(1), value=b"again") == [STORED]
    check_counts(store.root)


def test_a_full_disk_is_rejected_without_a_trace(store, monkeypatch):
    def full(fd, buffers, offset):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", full)
        assert store.set(store.key(1), store.key(2)) == [REJECTED] * 2
    assert store.totals.pages == store.totals.slots_reserved == 0
    assert store.set(store.key(1)) == [STORED]


def test_an_index_that_fails_after_the_write_leaves_nothing_reserved(store, monkeypatch):
    index = store.backend._store.index
    real = index.commit
    failing = [True]

    def commit(*arguments, **keywords):
        if failing:
            failing.clear()
            raise type(index)._FAILURE("the disk of the index is full")
        return real(*arguments, **keywords)

    from hicache_hf3fs.errors import IndexFull

    monkeypatch.setattr(type(index), "_FAILURE", IndexFull, raising=False)
    monkeypatch.setattr(index, "commit", commit)
    assert store.set(store.key(1)) == [REJECTED]
    assert store.totals.slots_reserved == 1
    assert store.set(store.key(2)) == [STORED]
    assert store.totals.slots_reserved == 0, "the next commit gives it back"
    assert store.numbers() == [2]


def test_slot_files_are_sparse_and_private(store):
    store.set(store.key(1))
    [path] = (store.root / "slots").iterdir()
    assert path.name == "4096.0"
    assert path.stat().st_size == 1 << 30
    assert path.stat().st_blocks * 512 <= 64 << 10
    assert path.stat().st_mode & 0o777 == 0o600


STEP = st.one_of(
    st.tuples(st.just("set"), st.lists(st.integers(0, 30), max_size=6), st.integers(1, 20_000)),
    st.tuples(st.just("replace"), st.lists(st.integers(0, 30), max_size=3), st.integers(1, 20_000)),
    st.tuples(st.just("delete"), st.lists(st.integers(0, 30), max_size=6), st.just(0)),
    st.tuples(st.just("get"), st.lists(st.integers(0, 30), max_size=6), st.integers(1, 20_000)),
    st.tuples(st.sampled_from(["clear", "reopen"]), st.just([]), st.just(0)),
)


@settings(max_examples=20, deadline=None)
@given(steps=st.lists(STEP, max_size=20), cap=st.none() | st.integers(1, 30))
def test_counts_add_up_and_the_cap_holds_whatever_happens(tmp_path_factory, steps, cap):
    root = tmp_path_factory.mktemp("property")
    options = Hf3fsOptions(root=str(root), max_size=cap and cap * SLOT)
    ctx = OpenContext(namespace="0" * 32)
    backend = open_hf3fs(options, ctx)
    model = {}
    for verb, chosen, nbytes in steps:
        keys = [f"ns/{n}" for n in chosen]
        if verb in ("set", "replace"):
            data = os.urandom(nbytes)
            done = backend.batch_set(keys, [[memoryview(data)]] * len(keys), IoContext(replace=verb == "replace"))
            model |= {key: data for key, outcome in zip(keys, done, strict=True) if outcome is STORED}
        elif verb == "get":
            for key in keys:
                expected = model.get(key, b"")
                page = bytearray(len(expected))
                [outcome] = backend.batch_get([key], [[memoryview(page)]], IoContext())
                if outcome is Outcome.HIT:
                    assert page == expected
                assert cap is not None or (outcome is Outcome.HIT) == (key in model)
        elif verb == "delete":
            backend.delete(keys, IoContext())
            model = {key: data for key, data in model.items() if key not in keys}
        elif verb == "clear":
            backend.clear("ns")
            model.clear()
        else:
            backend.close()
            backend = open_hf3fs(options, ctx)
        held, reserved = check_counts(root)
        assert reserved == 0
        assert cap is None or held <= cap * SLOT
    backend.close()


@pytest.mark.parametrize("sync", ["none", "data", "full"])
def test_bytes_are_synced_before_the_key_is_visible(open_store, monkeypatch, sync):
    steps = []
    for name in ("fsync", "fdatasync"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda fd, name=name, real=real: (steps.append(name), real(fd))[1])
    store = open_store(sync=sync)
    index = store.backend._store.index
    real_commit = index.commit
    monkeypatch.setattr(index, "commit", lambda *a, **k: (steps.append("commit"), real_commit(*a, **k))[1])
    assert store.set(store.key(1), store.key(2)) == [STORED] * 2
    assert steps == {"none": [], "data": ["fdatasync"], "full": ["fsync"]}[sync] + ["commit"]


def test_after_a_reboot_the_newest_pages_are_forgotten(open_store, monkeypatch):
    store = open_store()
    store.set(store.key(1), store.key(2))
    with closing(sqlite3.connect(store.root / DATABASE, isolation_level=None)) as connection:
        connection.execute("UPDATE pages SET written = written - 1000 WHERE key = ?", (store.key(1),))
    store.backend.close()
    monkeypatch.setattr("hicache_hf3fs.index.sqlite_index._boot_id", lambda: "another")
    assert open_store(sync="data").numbers() == [1, 2], "they were synced"
    again = open_store()
    assert again.numbers() == [1]
    check_counts(again.root)
