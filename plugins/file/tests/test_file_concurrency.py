"""Several threads, several stores on one root, several processes."""

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from hicache_file import locks, walk
from hicache_file.backend import open_file
from hicache_file.offline import usage
from hicache_file.options import FileOptions

from hicache_core.errors import MisuseError, OpenError
from hicache_core.types import IoContext, OpenContext, Outcome

BLOCK = 4096
NAMESPACE = "0123456789abcdef" * 2
CTX = OpenContext(namespace="5" * 32)


def test_of_many_writers_of_one_key_one_stores_it(open_store):
    stores = [open_store() for _ in range(4)]
    start = threading.Barrier(8)

    def write(number):
        start.wait(30)
        store = stores[number % 4]
        return store.set(*[store.key(n) for n in range(50)], value=bytes([number]) * 3000)

    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(write, range(8)))
    for number in range(50):
        told = [o[number] for o in outcomes]
        assert told.count(Outcome.STORED) == 1
        assert told.count(Outcome.EXISTS) == 7
        writer = told.index(Outcome.STORED)
        assert stores[0].get(stores[0].key(number), 3000) == (Outcome.HIT, bytes([writer]) * 3000)
    assert stores[0].backend.stats().files == 50


def test_readers_see_whole_pages_while_they_are_replaced_evicted_and_deleted(open_store):
    store = open_store(max_size=20 * BLOCK)
    keys = [store.key(n) for n in range(30)]
    ended = threading.Event()

    def write(seed):
        try:
            for round_ in range(60):
                store.set(*keys[seed::3], value=bytes([round_ % 250 + 1]) * 4000, replace=round_ % 2 == 0)
                if round_ % 7 == 0:
                    store.delete(*keys[seed : seed + 4])
        finally:
            if seed == 0:
                ended.set()

    seen = set()

    def read():
        while not ended.is_set():
            for key in keys:
                outcome, value = store.get(key, 4000)
                seen.add(outcome)
                assert outcome in (Outcome.HIT, Outcome.MISS)
                assert outcome is Outcome.MISS or (len(set(value)) == 1 and value[0])

    with ThreadPoolExecutor(5) as pool:
        for job in [pool.submit(write, 0), pool.submit(write, 1), pool.submit(write, 2), pool.submit(read)]:
            job.result(60)
    assert Outcome.HIT in seen
    stats, found = store.backend.stats(), usage(str(store.root))
    assert (stats.files, stats.bytes_allocated) == (found.files, found.bytes_allocated)
    assert found.bytes_allocated <= 20 * BLOCK


def test_no_descriptor_and_no_thread_is_left(open_store):
    before = set(os.listdir("/proc/self/fd"))
    threads = threading.active_count()
    for _ in range(30):
        store = open_store(max_size=8 * BLOCK)
        store.set(*[store.key(n) for n in range(20)], value=b"x" * 3000)
        store.get(store.key(1))
        store.set(store.key(3), replace=True)
        store.stored()
        store.delete(store.key(3))
        store.backend.stats()
        store.backend.clear("x")
        store.backend.close()
    assert len(os.listdir("/proc/self/fd")) == len(before)
    assert threading.active_count() == threads
    assert os.listdir(store.root / "+hicache" / "writers") == []


def test_close_waits_for_calls_that_run_and_the_last_one_releases(store, monkeypatch):
    descriptors = len(os.listdir("/proc/self/fd"))
    inside, go = threading.Event(), threading.Event()
    real = os.pwritev

    def slow(fd, buffers, at):
        inside.set()
        assert go.wait(30)
        return real(fd, buffers, at)

    monkeypatch.setattr(os, "pwritev", slow)
    monkeypatch.setattr("hicache_file.backend._CLOSE_PATIENCE_SECONDS", 0.0)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(store.set, store.key(1))
        assert inside.wait(30)
        store.backend.close()
        with pytest.raises(MisuseError):
            store.set(store.key(2))
        go.set()
        assert running.result(30) == [Outcome.STORED]
    assert len(os.listdir("/proc/self/fd")) < descriptors
    assert os.listdir(store.root / "+hicache" / "writers") == []


def test_who_waits_for_a_stopped_remover_gives_up_in_time(open_store, monkeypatch):
    one, two = open_store(max_size=4 * BLOCK), open_store(max_size=4 * BLOCK)
    one.set(*[one.key(n) for n in range(4)])
    monkeypatch.setattr(locks, "PATIENCE_SECONDS", 0.01)
    with one.backend._store.removal.held():
        assert two.set(two.key(9)) == [Outcome.REJECTED]
        assert two.set(two.key(1), replace=True) in ([Outcome.TIMEOUT], [Outcome.REJECTED])
        assert two.delete(two.key(1)) == [Outcome.TIMEOUT]
    assert two.delete(two.key(1)) == [Outcome.HIT]
    assert two.set(two.key(9)) == [Outcome.STORED]


HAMMER = """
import json, random, sys
from hicache_core.types import IoContext, OpenContext
from hicache_file.backend import open_file
from hicache_file.options import FileOptions
root, seed, cap = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
backend = open_file(FileOptions(root=root, max_size=cap, eviction_ratio=0.8), OpenContext(namespace="0" * 32))
print("ready", flush=True)
sys.stdin.readline()
rng, told, wrong = random.Random(seed), {}, 0
for step in range(45):
    ids = [rng.randrange(250) for _ in range(12)]
    pages = [[memoryview(bytes([n]) * (1000 + 61 * n))] for n in ids]
    for outcome in backend.batch_set([f"ns/{n}" for n in ids], pages, IoContext(replace=rng.random() < 0.2)):
        told[outcome.value] = told.get(outcome.value, 0) + 1
    back = [[memoryview(bytearray(1000 + 61 * n))] for n in ids]
    for n, page, outcome in zip(ids, back, backend.batch_get([f"ns/{n}" for n in ids], back, IoContext())):
        wrong += outcome.value not in ("hit", "miss") or (bool(outcome) and set(page[0]) != {n})
    if rng.random() < 0.1:
        backend.delete([f"ns/{n}" for n in ids[:3]], IoContext())
    if step == 30 and seed == 3:
        backend.clear("ns")
stats = backend.stats()
backend.close()
print(json.dumps({"told": told, "wrong": wrong, "evictions": stats.evictions}))
"""


def test_processes_that_write_and_evict_in_one_root_keep_one_cap(root, open_store):
    cap = 200 * BLOCK
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", HAMMER, str(root), str(seed), str(cap)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in range(4)
    ]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    watched = open_store(max_size=cap)
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    # The account never passes the cap, and so the files never do, also while all of them write.
    highest = 0
    while any(process.poll() is None for process in processes):
        totals = watched.backend._store.space.totals()
        highest = max(highest, totals.used + totals.reserved)
    reports = [json.loads(process.communicate(timeout=60)[0].splitlines()[-1]) for process in processes]
    assert all(process.returncode == 0 for process in processes)
    assert sum(report["wrong"] for report in reports) == 0
    assert sum(report["evictions"] for report in reports) > 100
    assert all(report["told"]["stored"] > 100 for report in reports)
    assert highest <= cap
    stats, found = watched.backend.stats(), usage(str(root))
    assert stats.exact
    assert (stats.files, stats.bytes_allocated) == (found.files, found.bytes_allocated)
    assert 0 < found.bytes_allocated <= cap
    assert watched.set(watched.key(1)) == [Outcome.STORED]
    assert os.listdir(root / "+hicache" / "writers") == [watched.backend._store.writer.name]
    assert watched.backend.batch_contains([watched.key(1)], IoContext()) == [True]


def test_listings_at_the_same_time_see_everything(store):
    """Descriptors of one open directory share its offset: a listing would end where the other stands."""
    spaces = [f"{n:032x}" for n in range(5)]
    store.set(*[store.key(1, space) for space in spaces])
    with os.scandir(store.backend._store.directory.fd) as other:
        next(other)
        assert walk.namespaces(store.backend._store.directory) == spaces
        store.backend._store.space.reconcile()
        assert store.backend.stats().files == 5
        assert len(store.stored()) == 5
        assert len(list(other)) == 5  # five namespaces and our records, less the one it had


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.EACCES, errno.EIO, errno.ESTALE])
def test_a_writer_that_cannot_be_looked_at_is_not_taken_for_dead(open_store, monkeypatch, code):
    living, sweeper = open_store(), open_store()
    name, fd = living.backend._store.writer.temporary()
    os.close(fd)
    real = os.open

    def fail(path, *arguments, **more):
        if path == "record":
            raise OSError(code, os.strerror(code), path)
        return real(path, *arguments, **more)

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", fail)
        swept = sweeper.backend._store.space.sweep()
    assert (swept.alive, swept.dead, swept.temporaries) == (1, 0, 0)
    living.backend._store.writer.remove(name)
    assert living.set(living.key(1)) == [Outcome.STORED]


def test_a_stopped_process_that_holds_the_account_costs_time_and_no_hang(open_store, root, monkeypatch):
    """Its lock never comes free. Nothing waits for it without a limit, and the account is right again afterwards."""
    store = open_store(max_size=100 * BLOCK)
    monkeypatch.setattr(locks, "PATIENCE_SECONDS", 0.01)
    store.set(store.key(1))
    held = os.open(root / "+hicache/account", os.O_RDWR)
    fcntl.flock(held, fcntl.LOCK_EX)
    assert store.set(store.key(1), store.key(2)) == [Outcome.EXISTS, Outcome.TIMEOUT]
    assert store.get(store.key(1))[0] is Outcome.HIT
    assert store.delete(store.key(1)) == [Outcome.TIMEOUT]
    with pytest.raises(OpenError, match="is locked"):
        open_store()
    settle = store.backend._store.space.settle

    def hold_and_settle(*arguments):
        fcntl.flock(held, fcntl.LOCK_EX)
        settle(*arguments)

    fcntl.flock(held, fcntl.LOCK_UN)
    with monkeypatch.context() as patched:
        patched.setattr(type(store.backend._store.space), "settle", lambda self, *more: hold_and_settle(*more))
        assert store.set(store.key(3)) == [Outcome.STORED]
    os.close(held)
    assert store.set(store.key(4)) == [Outcome.STORED]
    stats = store.backend.stats()
    assert (stats.files, stats.bytes_allocated, stats.exact) == (3, store.allocated(), True)
    assert store.backend._store.space.totals().reserved == 0


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO])
def test_a_directory_that_cannot_be_read_now_is_not_an_empty_one(open_store, monkeypatch, code):
    """Taken for empty, its pages would be off the account, and the cap would be passed."""
    store = open_store(max_size=4 * BLOCK)
    store.set(*[store.key(n) for n in range(4)])
    before, real = store.backend.stats(), os.open

    def fail(path, *arguments, **more):
        if path in walk.LEAVES:
            raise OSError(code, os.strerror(code), path)
        return real(path, *arguments, **more)

    store.backend._store.space.mark_dirty()
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", fail)
        for count in (store.backend._store.space.reconcile, store.stored, lambda: store.backend.clear(NAMESPACE)):
            with pytest.raises(OSError, match=os.strerror(code)):
                count()
        assert store.set(store.key(9)) == [Outcome.REJECTED]
        stats = store.backend.stats()
        assert (stats.files, stats.bytes_allocated, stats.exact) == (before.files, before.bytes_allocated, False)
    assert store.backend.stats().exact
    assert store.set(store.key(9)) == [Outcome.STORED]


def test_a_forked_child_keeps_no_lock_of_a_parent_that_died(tmp_path):
    """flock goes with the last descriptor: a child that inherited one would hold the lock of its dead parent."""
    root, script = tmp_path / "store", tmp_path / "parent.py"
    script.write_text(FORKING_PARENT)
    parent = subprocess.Popen([sys.executable, script, root], stdout=subprocess.PIPE, text=True)
    child = int(parent.stdout.readline())
    said = parent.stdout.readline()
    parent.stdout.close()
    try:
        assert parent.wait(30) == -signal.SIGKILL
        assert "a forked one opens its own" in said
        with closing(open_file(FileOptions(root=str(root)), CTX)) as backend:
            with backend._store.removal.held(0.0):
                assert not list((root / "+hicache/writers").glob("*/0"))
            assert len(os.listdir(root / "+hicache/writers")) == 1
    finally:
        os.kill(child, signal.SIGKILL)


FORKING_PARENT = """
import os, signal, sys
from hicache_file.backend import open_file
from hicache_file.options import FileOptions
from hicache_core.types import IoContext, OpenContext

backend = open_file(FileOptions(root=sys.argv[1]), OpenContext(namespace="5" * 32))
store = backend._store
name, fd = store.writer.temporary()
with store.removal.held(), backend._gate._idle:
    ready, told = os.pipe()
    child = os.fork()
    if not child:
        try:
            backend.batch_exists(["a"], IoContext())
        except Exception as error:
            print(os.getpid(), error, sep="\\n", flush=True)
        os.write(told, b".")
        os.close(1)
        signal.alarm(60)  # it ends, whatever becomes of the test
        signal.pause()
    os.read(ready, 1)
    os.kill(os.getpid(), signal.SIGKILL)
"""
