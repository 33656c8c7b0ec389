"""What a store takes it gives back; what it lends to threads it gets back first."""

import gc
import os
import subprocess
import sys
import threading

import pytest
from hicache_s3.daemon_pool import DaemonPool
from hicache_s3.sweep import Over, Sweep, once

from hicache_core.errors import MisuseError


@pytest.fixture
def pool():
    made = DaemonPool(4, "pool")
    yield made
    made.close(10)


def use(store):
    keys = [store.key(n) for n in range(40)]
    store.set(*keys)
    store.exists(*keys)
    for key in keys[:5]:
        store.get(key)
    store.stored()
    store.delete(*keys)


def test_close_leaves_no_thread_and_no_descriptor(open_store):
    for _ in range(2):
        store = open_store()
        use(store)
        store.backend.close()
    gc.collect()
    threads, descriptors = set(threading.enumerate()), len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        store = open_store()
        use(store)
        store.backend.close()
        assert set(threading.enumerate()) == threads
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= descriptors + 3


def test_a_failed_open_leaves_no_thread(open_at):
    threads = set(threading.enumerate())
    with pytest.raises(OSError, match="does not answer"):
        open_at(
            url="s3://b", endpoint="http://127.0.0.1:1", access_key_id="a", secret_access_key="b", allow_http=True
        )
    assert set(threading.enumerate()) == threads


EXIT_AT_ONCE = """
import json, sys
from hicache_core.types import IoContext, OpenContext
from hicache_s3.backend import open_s3
from hicache_s3.options import S3Options
backend = open_s3(S3Options(**json.loads(sys.argv[1])), OpenContext(namespace="0" * 32))
backend.batch_exists([f"{'0' * 32}/{n}" for n in range(128)], IoContext())
"""


def test_an_interpreter_that_ends_without_close_ends_well(place):
    import json

    for _ in range(3):
        run = subprocess.run(
            [sys.executable, "-c", EXIT_AT_ONCE, json.dumps(place)], capture_output=True, text=True, timeout=60
        )
        assert (run.returncode, run.stderr) == (0, "")


def test_a_forked_process_is_told_what_it_cannot_do(store, place):
    from hicache_s3.backend import open_s3
    from hicache_s3.options import S3Options

    from hicache_core.errors import OpenError
    from hicache_core.types import IoContext, OpenContext

    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        said = []
        try:
            store.backend.batch_exists([store.key(1)], IoContext())
        except MisuseError as error:
            said.append(str(error))
        try:
            open_s3(S3Options(**place), OpenContext(namespace="0" * 32))
        except OpenError as error:
            said.append(str(error))
        os.write(writing, "\n".join(said).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answers:
        said = answers.read()
    assert os.waitpid(child, 0)[1] == 0
    assert "a forked one opens its own" in said
    assert "'spawn'" in said
    assert store.exists(store.key(1)) == 0, "the parent's store goes on"


def test_a_pool_starts_only_the_threads_that_it_needs(pool):
    for _ in range(20):
        assert once(pool, lambda: 7, deadline=float("inf")) == 7
    assert len(pool._threads) <= 2


def test_a_closed_pool_takes_no_work(pool):
    pool.close(1)
    assert not pool.submit(lambda: None)
    assert Sweep(pool, 3, lambda number: None, window=2).start().finish(None)


def test_a_sweep_does_each_once_and_raises_what_is_our_own_fault(pool):
    done = []
    assert Sweep(pool, 100, done.append, window=4).start().finish(None)
    assert sorted(done) == list(range(100))
    with pytest.raises(ZeroDivisionError):
        Sweep(pool, 1, lambda number: 1 // number, window=1).start().finish(None)


def test_once_raises_the_request_s_error_and_times_out(pool):
    with pytest.raises(KeyError):
        once(pool, lambda: {}["x"], deadline=float("inf"))
    gate = threading.Event()
    with pytest.raises(TimeoutError):
        once(pool, lambda: gate.wait(30), deadline=0.0)
    gate.set()


def test_no_page_is_touched_after_a_sweep_was_given_up(pool):
    began, gate, tried, refused = threading.Event(), threading.Event(), threading.Event(), []

    def work(number):
        began.set()
        gate.wait(30)
        try:
            with sweep.lent():
                pass
        except Over:
            refused.append(number)
            raise
        finally:
            tried.set()

    sweep = Sweep(pool, 1, work, window=1).start()
    assert began.wait(30)
    assert not sweep.finish(0.0)
    gate.set()
    assert tried.wait(30)
    assert refused == [0]


def test_a_sweep_that_is_given_up_waits_for_a_copy_that_has_begun(pool):
    inside, leave, order = threading.Event(), threading.Event(), []

    def work(number):
        with sweep.lent():
            inside.set()
            leave.wait(30)
            order.append("copied")

    sweep = Sweep(pool, 1, work, window=1).start()
    assert inside.wait(30)
    threading.Timer(0.05, leave.set).start()
    assert not sweep.finish(0.0)
    assert order == ["copied"]
