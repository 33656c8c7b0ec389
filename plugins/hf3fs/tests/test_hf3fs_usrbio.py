"""USRBIO, on the emulator of its Python interface: matching by userdata, failures, late answers, shared memory."""

import os
import sys
import threading
import time

import pytest
from hicache_hf3fs.backend import open_hf3fs
from hicache_hf3fs.emulator import emulated_3fs
from hicache_hf3fs.options import Hf3fsOptions
from hicache_hf3fs.sharedmemory import DIRECTORY, SharedMemory

from hicache_core.errors import MissingDependencyError, OpenError
from hicache_core.types import IoContext, OpenContext, Outcome

CTX = OpenContext(namespace="0" * 32)
STORED, HIT = Outcome.STORED, Outcome.HIT


def shared_files():
    return sorted(name for name in os.listdir(DIRECTORY) if name.startswith("hicache-hf3fs-"))


def pages_of(count, nbytes):
    return [[memoryview(os.urandom(64)), memoryview(os.urandom(nbytes + n * 11))] for n in range(count)]


def blank(pages):
    return [[memoryview(bytearray(buffer.nbytes)) for buffer in page] for page in pages]


def impatient(monkeypatch, world):
    """Have answers held back, and calls give up soon."""
    monkeypatch.setattr("hicache_hf3fs.usrbio._PATIENCE_SECONDS", 0.05)
    world.release.clear()


def patient(monkeypatch, world):
    """The opposite."""
    monkeypatch.setattr("hicache_hf3fs.usrbio._PATIENCE_SECONDS", 30.0)
    world.release.set()


@pytest.fixture
def store(opened, emulated_options):
    return opened(**emulated_options)


def test_it_is_chosen_where_it_is_there_and_says_so(opened, emulated_options, tmp_path, world):
    auto = opened(**{**emulated_options, "io": "auto"})
    assert auto.backend.stats().io == "usrbio"
    assert not auto.backend.capabilities.zero_copy_v1
    assert world.registered == set()
    auto.set(auto.key(1))
    assert len(world.registered) == 1
    assert opened(**{**emulated_options, "io": "posix"}).backend.stats().io == "posix"
    elsewhere = opened(root=str(tmp_path / "elsewhere"))
    assert elsewhere.backend.stats().io == "posix"
    assert elsewhere.backend.capabilities.zero_copy_v1
    auto.backend.close()
    assert world.registered == set()


@pytest.mark.parametrize("iov_bytes", [8192, 100_000, 64 << 20])
@pytest.mark.parametrize("entries", [1, 5, 256])
def test_answers_in_any_order_find_their_pages(opened, emulated_options, world, iov_bytes, entries):
    """Also pages larger than the memory of a lane, in pieces."""
    store = opened(**emulated_options, iov_bytes=iov_bytes, ring_entries=entries)
    pages = pages_of(40, 30_000)
    keys = [store.key(n) for n in range(40)]
    assert store.backend.batch_set(keys, pages, IoContext()) == [STORED] * 40
    back = blank(pages)
    assert store.backend.batch_get(keys, back, IoContext()) == [HIT] * 40
    assert back == pages
    assert world.moved == store.backend.stats().bytes_read + store.backend.stats().bytes_written


def test_the_mounted_path_reads_what_usrbio_wrote(opened, emulated_options):
    store = opened(**emulated_options)
    store.set(store.key(1))
    posix = opened(**{**emulated_options, "io": "posix"})
    assert posix.get(store.key(1)) == (HIT, b"v" * 1000)


@pytest.mark.parametrize(
    ("answer", "written", "read"),
    [
        (-5, Outcome.UNAVAILABLE, Outcome.UNAVAILABLE),
        (-28, Outcome.REJECTED, Outcome.REJECTED),
        (100, Outcome.REJECTED, Outcome.CORRUPT),
        (0, Outcome.REJECTED, Outcome.CORRUPT),
    ],
)
def test_one_io_that_fails_is_one_page(store, world, answer, written, read):
    keys = [store.key(n) for n in range(6)]
    world.fail = {(False, 3 * 4096): answer}
    assert store.set(*keys) == [STORED] * 3 + [written] + [STORED] * 2
    assert store.totals.slots_reserved == 0
    world.fail = {}
    assert store.set(*keys)[3] is STORED
    row = store.backend._store.index.lookup([keys[1]]).rows[0]
    world.fail = {(True, row.slot * 4096): answer}
    assert [store.get(key)[0] for key in keys] == [HIT, read] + [HIT] * 4


def test_writes_that_are_late_keep_their_slots_until_they_end(store, world, monkeypatch):
    impatient(monkeypatch, world)
    assert store.set(store.key(1), store.key(2)) == [Outcome.TIMEOUT] * 2
    assert store.totals.slots_reserved == 2, "the store may still be writing there"
    assert store.exists(store.key(1)) == 0
    patient(monkeypatch, world)
    assert store.set(store.key(3), store.key(4)) == [STORED] * 2
    assert store.totals.slots_reserved == 0
    assert store.set(store.key(1)) == [STORED]
    assert store.get(store.key(1)) == (HIT, b"v" * 1000)


def test_reads_that_are_late_do_not_touch_the_page_any_more(store, world, monkeypatch):
    store.set(store.key(1))
    impatient(monkeypatch, world)
    assert store.get(store.key(1)) == (Outcome.TIMEOUT, bytes(1000))
    patient(monkeypatch, world)
    assert store.get(store.key(1)) == (HIT, b"v" * 1000)


def test_all_rings_stuck_is_a_timeout_and_they_come_back(opened, emulated_options, world, monkeypatch):
    store = opened(**emulated_options, rings=2)
    store.set(store.key(1))
    impatient(monkeypatch, world)
    assert [store.get(store.key(1))[0] for _ in range(4)] == [Outcome.TIMEOUT] * 4
    assert len(store.backend._store.mover._lanes) == 2
    patient(monkeypatch, world)
    assert store.get(store.key(1))[0] is HIT


def test_rings_that_are_slow_to_make_hold_up_nobody_else(opened, emulated_options, monkeypatch):
    mover = opened(**emulated_options, rings=2).backend._store.mover
    begun, go, got = threading.Event(), threading.Event(), []
    make = mover._make

    def slow():
        begun.set()
        assert go.wait(30)
        return make()

    monkeypatch.setattr(mover, "_make", slow)

    def second():
        with mover._lane(time.monotonic() + 30) as lane:
            got.append(lane)

    waiter = threading.Thread(target=second, daemon=True)
    with mover._lane(time.monotonic() + 30) as first:
        waiter.start()
        assert begun.wait(30)
    with mover._lane(time.monotonic() + 30) as again:  # while the second is being made
        assert again is first
        go.set()
        waiter.join(30)
    assert len({id(first), *map(id, got)}) == 2


def test_shared_memory_and_links_go_with_the_store_or_with_the_next(opened, emulated_options, world):
    links = world.mount / "3fs-virt" / "iovs"
    before = shared_files()
    store = opened(**emulated_options)
    store.set(store.key(1))
    assert len(shared_files()) == len(before) + 1
    [link] = links.iterdir()
    assert link.resolve().parent == link.resolve().parent.resolve()
    store.backend.close()
    assert shared_files() == before
    assert list(links.iterdir()) == []
    pid = os.fork()
    if not pid:
        SharedMemory(8192)
        os._exit(9)
    os.waitpid(pid, 0)
    assert len(shared_files()) == len(before) + 1
    memory = SharedMemory(8192)
    assert shared_files() == sorted([*before, memory.name])
    memory.close()


def test_usrbio_that_is_asked_for_and_not_there(tmp_path):
    assert "hf3fs_py_usrbio" not in sys.modules
    with pytest.raises(MissingDependencyError, match=r"build hf3fs_py_usrbio from the 3FS source.*io=posix"):
        open_hf3fs(Hf3fsOptions(root=str(tmp_path / "x"), io="usrbio"), CTX)
    with emulated_3fs(tmp_path / "mount"), pytest.raises(OpenError, match="is not on a 3FS mount"):
        open_hf3fs(Hf3fsOptions(root=str(tmp_path / "x"), io="usrbio"), CTX)


def test_an_embedded_index_on_the_mount_is_refused_with_the_mend(world):
    with pytest.raises(OpenError, match=r"index_dir.*metadata_url"):
        open_hf3fs(Hf3fsOptions(root=str(world.mount / "store")), CTX)


def test_rings_that_do_not_start_are_told_at_open(emulated_options, world, monkeypatch):
    def refuse(*_, **__):
        raise RuntimeError("no such client")

    monkeypatch.setattr(sys.modules["hf3fs_fuse.io"], "make_ioring", refuse)
    descriptors, files = len(os.listdir("/proc/self/fd")), shared_files()
    with pytest.raises(OpenError, match=r"USRBIO on .* does not start .*no such client"):
        open_hf3fs(Hf3fsOptions(**emulated_options), CTX)
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert shared_files() == files
