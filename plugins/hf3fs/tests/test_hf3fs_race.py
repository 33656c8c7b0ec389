"""A slot that is given away while it is read is not believed; several threads and processes share a store."""

import json
import random
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from hicache_core.types import IoContext, Outcome

HIT, MISS = Outcome.HIT, Outcome.MISS


@pytest.fixture
def reader_and_rival(any_store, monkeypatch):
    """A store, and a way to have something done after its pages were read and before they are believed."""
    mover = any_store.backend._store.mover
    real = mover.read
    todo = []

    def read(jobs, deadline, verify):
        moved = real(jobs, deadline, verify)
        if todo:
            todo.pop()()
        return moved

    monkeypatch.setattr(mover, "read", read)
    return any_store, todo.append


def test_a_page_that_is_removed_while_it_is_read_is_a_miss(reader_and_rival):
    store, meanwhile = reader_and_rival
    store.set(store.key(1), store.key(2))

    def steal():
        store.delete(store.key(1))
        assert store.set(store.key(7), value=b"x" * 1000) == [Outcome.STORED]

    meanwhile(steal)
    back = [[memoryview(bytearray(64)), memoryview(bytearray(1000))] for _ in range(2)]
    assert store.backend.batch_get([store.key(1), store.key(2)], back, IoContext()) == [MISS, HIT]
    assert store.backend.stats().raced == 1


def test_a_page_that_is_replaced_while_it_is_read_is_read_again(reader_and_rival):
    store, meanwhile = reader_and_rival
    store.set(store.key(1))

    def replace():
        store.set(store.key(1), value=b"n" * 1000, replace=True)
        store.set(store.key(7), value=b"x" * 1000)

    meanwhile(replace)
    assert store.get(store.key(1)) == (HIT, b"n" * 1000)


def test_a_page_that_is_evicted_while_it_is_read_is_a_miss(open_store, monkeypatch):
    store = open_store(max_size=4 * 4096)
    rival = open_store(max_size=4 * 4096)
    store.set(*[store.key(n) for n in range(4)])
    mover = store.backend._store.mover
    real = mover.read

    def read(jobs, deadline, verify):
        moved = real(jobs, deadline, verify)
        assert rival.set(*[rival.key(n) for n in range(10, 14)], value=b"x" * 1000) == [Outcome.STORED] * 4
        return moved

    monkeypatch.setattr(mover, "read", read)
    assert store.get(store.key(2))[0] is MISS


def test_threads_that_write_evict_replace_and_read_never_see_a_wrong_page(open_store):
    stores = [open_store(max_size=20 * 4096) for _ in range(2)]
    keys = [stores[0].key(n) for n in range(30)]
    ended = threading.Event()
    seen = set()

    def write(seed):
        rng = random.Random(seed)
        store = stores[seed % 2]
        try:
            for _ in range(60):
                for number in rng.sample(range(30), 5):
                    store.set(keys[number], value=bytes([number + 1]) * 4000, replace=rng.random() < 0.5)
                if rng.random() < 0.2:
                    store.delete(*rng.sample(keys, 3))
        finally:
            if seed == 0:
                ended.set()

    def read(store):
        while not ended.is_set():
            for number, key in enumerate(keys):
                outcome, value = store.get(key, 4000)
                seen.add(outcome)
                assert outcome is MISS or (outcome is HIT and value == bytes([number + 1]) * 4000), outcome

    with ThreadPoolExecutor(5) as pool:
        jobs = [pool.submit(write, n) for n in range(3)] + [pool.submit(read, store) for store in stores]
        for job in jobs:
            job.result(120)
    assert HIT in seen
    totals = stores[0].totals
    assert totals.slots_reserved == 0
    assert totals.bytes_held <= 20 * 4096


HAMMER = """
import json, random, sys
from hicache_core.types import IoContext, OpenContext
from hicache_hf3fs.backend import open_hf3fs
from hicache_hf3fs.options import Hf3fsOptions
options, seed = Hf3fsOptions(**json.loads(sys.argv[1])), int(sys.argv[2])
backend = open_hf3fs(options, OpenContext(namespace="0" * 32))
print("ready", flush=True)
sys.stdin.readline()
rng, told, wrong = random.Random(seed), {}, 0
for step in range(40):
    ids = [rng.randrange(200) for _ in range(12)]
    pages = [[memoryview(bytes([n]) * (1000 + 61 * n))] for n in ids]
    for outcome in backend.batch_set([f"ns/{n}" for n in ids], pages, IoContext(replace=rng.random() < 0.2)):
        told[outcome.value] = told.get(outcome.value, 0) + 1
    back = [[memoryview(bytearray(1000 + 61 * n))] for n in ids]
    for n, page, outcome in zip(ids, back, backend.batch_get([f"ns/{n}" for n in ids], back, IoContext())):
        wrong += outcome.value not in ("hit", "miss") or (bool(outcome) and set(page[0]) != {n})
    if rng.random() < 0.1:
        backend.delete([f"ns/{n}" for n in ids[:3]], IoContext())
    if step == 20 and seed == 2:
        backend.clear("ns")
backend.close()
print(json.dumps({"told": told, "wrong": wrong}))
"""


@pytest.mark.parametrize("kind", ["embedded", "service"])
def test_processes_share_one_store(root, open_store, opened, request, kind):
    options = {"root": str(root), "io": "posix", "max_size": 200 * 4096}
    if kind == "service":
        options = request.getfixturevalue("service").options
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", HAMMER, json.dumps(options), str(seed)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in range(3)
    ]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    reports = [json.loads(process.communicate(timeout=120)[0]) for process in processes]
    assert [report["wrong"] for report in reports] == [0, 0, 0]
    told = {outcome for report in reports for outcome in report["told"]}
    assert told <= {"stored", "exists", "rejected"}
    assert "stored" in told
    totals = opened(**options).totals
    assert totals.slots_reserved == 0
    assert totals.pages + totals.slots_free == totals.slots
