"""The cap, what is evicted to keep it, and the account that it is measured by."""

import errno
import fcntl
import os
import struct

import pytest
from hicache_file.backend import open_file
from hicache_file.offline import usage
from hicache_file.options import FileOptions
from hypothesis import given, settings
from hypothesis import strategies as st

from hicache_core.errors import OpenError
from hicache_core.types import IoContext, OpenContext, Outcome

NS = "0123456789abcdef" * 2
BLOCK = 4096
PAGE = b"x" * (BLOCK - 64)
"""With its seal exactly one block."""


def age(store, *numbers, step=1.0):
    """Make the pages look as if they had been used in this order, the last just now minus an hour."""
    start = 1_700_000_000.0
    for position, number in enumerate(numbers):
        os.utime(store.path(store.key(number)), (start + position * step,) * 2)


def numbers(store):
    return sorted(int(key[33:97], 16) for key in store.stored())


def test_the_account_equals_a_scan_after_every_kind_of_step(store):
    def same():
        stats = store.backend.stats()
        return (stats.files, stats.bytes_allocated) == (len(store.files()), store.allocated())

    store.set(*[store.key(n) for n in range(20)])
    assert same()
    store.set(*[store.key(n) for n in range(10, 30)], value=b"y" * 9000)
    assert same()
    store.set(store.key(0), store.key(50), value=b"z" * 20_000, replace=True)
    assert same()
    store.delete(*[store.key(n) for n in range(5)])
    assert same()
    store.backend.clear(NS)
    assert same()
    assert store.backend.stats().bytes_allocated == 0


def test_the_cap_is_kept_and_the_longest_unused_go(open_store):
    store = open_store(max_size=10 * BLOCK, eviction_ratio=1.0)
    store.set(*[store.key(n) for n in range(10)], value=PAGE)
    age(store, *[3, 1, 4, 0, 5, 9, 2, 6, 8, 7])
    assert store.set(store.key(10), store.key(11), value=PAGE) == [Outcome.STORED] * 2
    assert numbers(store) == [0, 2, 4, 5, 6, 7, 8, 9, 10, 11]
    assert store.backend.stats().evictions == 2
    assert store.backend.stats().bytes_allocated == store.allocated() == 10 * BLOCK


def test_eviction_goes_down_to_the_ratio(open_store):
    store = open_store(max_size=10 * BLOCK, eviction_ratio=0.5)
    store.set(*[store.key(n) for n in range(10)], value=PAGE)
    age(store, *range(10))
    store.set(store.key(10), value=PAGE)
    assert numbers(store) == [6, 7, 8, 9, 10]


def test_a_hit_protects_and_being_asked_for_does_not(open_store):
    store = open_store(max_size=4 * BLOCK, eviction_ratio=1.0)
    store.set(*[store.key(n) for n in range(4)], value=PAGE)
    age(store, 0, 1, 2, 3)
    assert store.get(store.key(0), len(PAGE))[0] is Outcome.HIT
    assert store.backend.batch_exists([store.key(1)], IoContext()) == 1
    assert store.set(store.key(2), value=PAGE) == [Outcome.EXISTS]
    store.set(store.key(4), value=PAGE)
    assert numbers(store) == [0, 2, 3, 4], "1 was only asked for; a page that is offered again is in use"
    store.set(store.key(5), value=PAGE)
    assert numbers(store) == [0, 2, 4, 5]


def test_hits_renew_the_time_stamp_at_most_once_an_interval(open_store):
    store = open_store(touch_interval=3600.0)
    store.set(store.key(1))
    path = store.path(store.key(1))
    recent = path.stat().st_mtime_ns - 10**9
    os.utime(path, ns=(recent, recent))
    store.get(store.key(1))
    assert path.stat().st_mtime_ns == recent
    for wrong in (1, 4_000_000_000):
        os.utime(path, (wrong, wrong))
        store.get(store.key(1))
        assert recent < path.stat().st_mtime_ns < 4_000_000_000 * 10**9, "also one from the future"


def test_a_tool_that_only_looks_renews_nothing(root, open_store):
    store = open_store()
    store.set(store.key(1))
    path = store.path(store.key(1))
    os.utime(path, (1, 1))
    looking = open_file(FileOptions(root=str(root)), OpenContext(namespace="0" * 32, inspecting=True))
    page = [memoryview(bytearray(1064))]
    assert looking.batch_get([store.key(1)], [page], IoContext()) == [Outcome.HIT]
    looking.close()
    assert path.stat().st_mtime == 1


def test_a_tool_that_looks_makes_no_store_and_evicts_nothing(root, open_store):
    look = OpenContext(namespace="0" * 32, inspecting=True)
    with pytest.raises(OpenError, match=r"cannot be opened.*whoever stores first makes it"):
        open_file(FileOptions(root=str(root)), look)
    root.mkdir(0o700)
    with pytest.raises(OpenError, match="holds no file store"):
        open_file(FileOptions(root=str(root)), look)
    assert list(root.iterdir()) == []
    store = open_store()
    store.set(*[store.key(n) for n in range(9)])
    store.backend.close()
    looking = open_file(FileOptions(root=str(root), max_size=4 * BLOCK), look)
    assert looking.stats().files == 9
    looking.close()


def test_recency_survives_a_restart(open_store):
    store = open_store(max_size=4 * BLOCK, eviction_ratio=1.0)
    store.set(*[store.key(n) for n in range(4)], value=PAGE)
    age(store, 0, 1, 2, 3)
    store.get(store.key(0), len(PAGE))
    store.backend.close()
    again = open_store(max_size=4 * BLOCK, eviction_ratio=1.0)
    again.set(again.key(4), again.key(5), value=PAGE)
    assert numbers(again) == [0, 3, 4, 5]


def test_what_was_used_after_the_scan_is_skipped_later(open_store):
    store = open_store(max_size=8 * BLOCK, eviction_ratio=1.0)
    store.set(*[store.key(n) for n in range(8)], value=PAGE)
    age(store, *range(8))
    store.set(store.key(8), value=PAGE)  # scans; 1 is next on the list
    store.get(store.key(1), len(PAGE))
    store.set(store.key(9), value=PAGE)
    assert numbers(store) == [1, 3, 4, 5, 6, 7, 8, 9]


def test_a_list_of_victims_that_is_used_up_is_made_again(open_store, monkeypatch):
    monkeypatch.setattr("hicache_file.victims.KEPT", 3)
    store = open_store(max_size=20 * BLOCK, eviction_ratio=0.5)
    store.set(*[store.key(n) for n in range(20)], value=PAGE)
    age(store, *range(20))
    store.set(*[store.key(n) for n in range(20, 24)], value=PAGE)
    assert numbers(store) == list(range(14, 24))


def test_a_page_larger_than_the_cap_is_rejected_and_evicts_nothing(open_store):
    store = open_store(max_size=4 * BLOCK)
    store.set(*[store.key(n) for n in range(3)], value=PAGE)
    assert store.set(store.key(9), value=b"x" * (4 * BLOCK)) == [Outcome.REJECTED]
    assert numbers(store) == [0, 1, 2]
    assert store.backend.stats().rejected == 1


def test_of_a_batch_larger_than_the_cap_the_start_is_stored(open_store):
    store = open_store(max_size=4 * BLOCK)
    store.set(store.key(99), value=PAGE)
    outcomes = store.set(*[store.key(n) for n in range(7)], value=PAGE)
    assert outcomes == [Outcome.STORED] * 4 + [Outcome.REJECTED] * 3
    assert numbers(store) == [0, 1, 2, 3]
    assert store.allocated() <= 4 * BLOCK


def test_other_namespaces_make_room_too(open_store):
    store = open_store(max_size=4 * BLOCK, eviction_ratio=1.0)
    store.set(*[store.key(n, "a") for n in range(4)], value=PAGE)
    assert store.set(*[store.key(n, "b") for n in range(3)], value=PAGE) == [Outcome.STORED] * 3
    assert sum(key.startswith("a/") for key in store.stored()) == 1


def test_opening_with_a_smaller_cap_evicts(open_store):
    store = open_store()
    store.set(*[store.key(n) for n in range(10)], value=PAGE)
    age(store, *range(10))
    store.backend.close()
    again = open_store(max_size=5 * BLOCK, eviction_ratio=1.0)
    assert numbers(again) == [5, 6, 7, 8, 9]


def test_min_free_space_evicts_and_rejects_where_that_does_not_help(open_store, monkeypatch):
    store = open_store(min_free_space=1000 * BLOCK)
    free = [1010 * BLOCK]
    monkeypatch.setattr(
        "hicache_file.directory.Directory.free_bytes", lambda self: free[0] - store.allocated(), raising=True
    )
    store.set(*[store.key(n) for n in range(10)], value=PAGE)
    age(store, *range(10))
    assert store.set(store.key(10), value=PAGE) == [Outcome.STORED]
    assert numbers(store) == list(range(1, 11))
    free[0] = 500 * BLOCK
    assert store.set(store.key(11), value=PAGE) == [Outcome.REJECTED]
    assert store.backend.stats().bytes_allocated == store.allocated()


def test_files_that_cannot_be_removed_are_skipped_and_counted(open_store, monkeypatch):
    store = open_store(max_size=8 * BLOCK, eviction_ratio=1.0)
    store.set(*[store.key(n) for n in range(8)], value=PAGE)
    age(store, *range(8))
    stuck = {store.path(store.key(n)).name for n in (0, 1, 3)}
    real = os.unlink

    def unlink(path, **where):
        if os.path.basename(path) in stuck:
            raise PermissionError(errno.EPERM, "immutable", path)
        real(path, **where)

    monkeypatch.setattr(os, "unlink", unlink)
    assert store.set(store.key(8), store.key(9), value=PAGE) == [Outcome.STORED] * 2
    assert numbers(store) == [0, 1, 3, 5, 6, 7, 8, 9]
    assert store.backend.stats().skipped == 3
    assert (
        store.set(*[store.key(n) for n in range(10, 18)], value=PAGE) == [Outcome.STORED] * 5 + [Outcome.REJECTED] * 3
    ), "what is stuck takes its room, the rest of the cap still works"
    assert store.backend.stats().bytes_allocated == store.allocated() == 8 * BLOCK


def test_where_nothing_can_be_removed_the_tree_is_not_scanned_for_every_set(open_store, monkeypatch):
    store = open_store(max_size=4 * BLOCK)
    store.set(*[store.key(n) for n in range(4)], value=PAGE)

    def unlink(path, **where):
        if "/" in str(path):
            raise PermissionError(errno.EPERM, "immutable", path)
        real(path, **where)

    real = os.unlink
    monkeypatch.setattr(os, "unlink", unlink)
    assert store.set(store.key(4), value=PAGE) == [Outcome.REJECTED]
    skipped = store.backend.stats().skipped
    assert skipped >= 4
    assert store.set(store.key(5), value=PAGE) == [Outcome.REJECTED]
    assert store.backend.stats().skipped == skipped
    monkeypatch.setattr(os, "unlink", real)
    monkeypatch.setattr(store.backend._store.space, "_hopeless_until", 0.0)
    assert store.set(store.key(5), value=PAGE) == [Outcome.STORED]


FS_IOC_GETFLAGS, FS_IOC_SETFLAGS, FS_IMMUTABLE_FL = 0x80086601, 0x40086602, 0x10


def make_immutable(path, on):
    fd = os.open(path, os.O_RDONLY)
    try:
        flags = struct.unpack("l", fcntl.ioctl(fd, FS_IOC_GETFLAGS, bytes(8)))[0]
        flags = flags | FS_IMMUTABLE_FL if on else flags & ~FS_IMMUTABLE_FL
        fcntl.ioctl(fd, FS_IOC_SETFLAGS, struct.pack("l", flags))
    finally:
        os.close(fd)


def test_a_really_immutable_file(open_store):
    store = open_store(max_size=4 * BLOCK, eviction_ratio=1.0)
    store.set(*[store.key(n) for n in range(4)], value=PAGE)
    age(store, *range(4))
    path = store.path(store.key(0))
    try:
        make_immutable(path, True)
    except OSError as error:
        pytest.skip(f"the file system or this user cannot make files immutable: {error}")
    try:
        assert store.set(store.key(4), value=PAGE) == [Outcome.STORED]
        assert numbers(store) == [0, 2, 3, 4]
        assert store.delete(store.key(0)) == [Outcome.UNAVAILABLE]
        assert store.backend.clear(NS) == 3
        assert numbers(store) == [0]
        assert store.backend.stats().skipped == 2
        assert store.backend.stats().files == 1
    finally:
        make_immutable(path, False)


def test_files_removed_behind_our_back_do_not_wedge_the_store(open_store):
    store = open_store(max_size=8 * BLOCK, eviction_ratio=1.0)
    store.set(*[store.key(n) for n in range(8)], value=PAGE)
    for path in store.files():
        path.unlink()
    assert store.set(*[store.key(n) for n in range(10, 18)], value=PAGE) == [Outcome.STORED] * 8
    assert numbers(store) == list(range(10, 18))
    assert store.backend.stats().bytes_allocated == store.allocated()


def test_files_removed_behind_our_back_cost_no_page_that_is_left(open_store):
    store = open_store(max_size=10 * BLOCK, eviction_ratio=1.0)
    store.set(*[store.key(n) for n in range(10)], value=PAGE)
    age(store, *range(10))
    store.set(store.key(10), value=PAGE)  # scans: the list of victims now begins with 1
    for number in (1, 2, 3, 4):
        store.path(store.key(number)).unlink()
    store.set(store.key(11), store.key(12), value=PAGE)
    assert numbers(store) == [5, 6, 7, 8, 9, 10, 11, 12]
    assert store.backend.stats().bytes_allocated == store.allocated()


def test_a_restart_counts_what_was_changed_meanwhile(open_store):
    store = open_store()
    store.set(*[store.key(n) for n in range(10)], value=PAGE)
    store.backend.close()
    for number in range(4):
        store.path(store.key(number)).unlink()
    for options in ({}, {"max_size": 100 * BLOCK}):
        again = open_store(**options)
        assert again.backend.stats().files == 6
        assert again.backend.stats().exact
        again.backend.close()


@pytest.mark.parametrize("damage", [b"", b"garbage", b"\0" * 60, b"\xff" * 200])
def test_a_damaged_account_is_counted_again(open_store, root, damage):
    store = open_store()
    store.set(*[store.key(n) for n in range(10)], value=PAGE)
    store.backend.close()
    (root / "+hicache" / "account").write_bytes(damage)
    again = open_store(max_size=8 * BLOCK, eviction_ratio=1.0)
    assert again.backend.stats().bytes_allocated == again.allocated() == 8 * BLOCK


def test_without_limits_nothing_is_ever_evicted(open_store):
    store = open_store()
    store.set(*[store.key(n) for n in range(300)], value=PAGE)
    assert len(numbers(store)) == 300
    assert store.backend.stats().evictions == 0


STEP = st.one_of(
    st.tuples(st.just("set"), st.lists(st.integers(0, 30), max_size=6), st.integers(0, 20_000)),
    st.tuples(st.just("replace"), st.lists(st.integers(0, 30), max_size=3), st.integers(0, 20_000)),
    st.tuples(st.just("delete"), st.lists(st.integers(0, 30), max_size=6), st.just(0)),
    st.tuples(st.just("get"), st.lists(st.integers(0, 30), max_size=6), st.integers(0, 20_000)),
    st.tuples(st.just("clear"), st.just([]), st.just(0)),
    st.tuples(st.just("reopen"), st.just([]), st.just(0)),
    st.tuples(st.just("vandal"), st.lists(st.integers(0, 30), max_size=2), st.just(0)),
)


@settings(max_examples=25, deadline=None)
@given(steps=st.lists(STEP, max_size=25), cap=st.none() | st.integers(1, 30), ratio=st.sampled_from([0.3, 0.9, 1.0]))
def test_account_equals_scan_and_keeps_the_cap_whatever_happens(tmp_path_factory, steps, cap, ratio):
    root = tmp_path_factory.mktemp("property")
    options = FileOptions(root=str(root), max_size=cap and cap * BLOCK, eviction_ratio=ratio)
    ctx = OpenContext(namespace=NS)
    backend = open_file(options, ctx)
    for verb, chosen, nbytes in steps:
        keys = [f"{NS}/{n}" for n in chosen]
        if verb in ("set", "replace"):
            backend.batch_set(keys, [[memoryview(bytes(nbytes))]] * len(keys), IoContext(replace=verb == "replace"))
        elif verb == "get":
            pages = [[memoryview(bytearray(nbytes))] for _ in keys]
            backend.batch_get(keys, pages, IoContext())
        elif verb == "delete":
            backend.delete(keys, IoContext())
        elif verb == "clear":
            backend.clear(NS)
        elif verb == "reopen":
            backend.close()
            backend = open_file(options, ctx)
        else:
            backend.close()
            for path in sorted(p for p in root.glob(f"{NS}/*/*"))[: len(chosen)]:
                path.unlink()
            backend = open_file(options, ctx)
        stats, found = backend.stats(), usage(str(root))
        assert (found.files, found.bytes_allocated) == (stats.files, stats.bytes_allocated)
        assert (found.account_files, found.account_bytes) == (stats.files, stats.bytes_allocated)
        assert cap is None or found.bytes_allocated <= cap * BLOCK
        assert stats.exact
    backend.close()
    assert os.listdir(root / "+hicache" / "writers") == []
