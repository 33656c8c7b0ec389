from __future__ import annotations

import gc
import os
import threading
import weakref

import numpy as np
import pytest

from hicache_core.errors import ConfigError, MisuseError, TransferError, TransferTimeoutError, UnknownNameError
from hicache_core.pools.device import NumpyDevicePool
from hicache_core.pools.geometry import KVGeometry
from hicache_core.pools.host import make_host_pool
from hicache_core.transfer.engine import TransferEngine

GEOMETRY = KVGeometry("mha", 4, 2, 4, dtype="float32", page_size=4)
BOUND = 30.0


def slots(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int64)


@pytest.fixture
def pools():
    memory = np.zeros(16 * GEOMETRY.page_nbytes, dtype=np.uint8)
    host = make_host_pool(GEOMETRY, "page_first", 16, memory=memory)
    device = NumpyDevicePool(GEOMETRY, 16)
    content = np.random.default_rng(3).integers(0, 256, (16, device.page_nbytes), dtype=np.uint8)
    device.write_pages(np.arange(16), content)
    return host, device


class Gate:
    """A hook that holds the copy before one layer until it is opened, or makes it fail there."""

    def __init__(self, direction: str, layer: int, error: BaseException | None = None) -> None:
        self.at = (direction, layer)
        self.error = error
        self.reached, self.open = threading.Event(), threading.Event()

    def __call__(self, direction: str, layer: int) -> None:
        if (direction, layer) == self.at:
            self.reached.set()
            assert self.open.wait(BOUND)
            if self.error is not None:
                raise self.error


def make(engines, pools, hook=None, **options) -> TransferEngine:
    engine = TransferEngine(*pools, hook=hook, **options)
    engines.append(engine)
    return engine


def test_round_trip_with_tags_and_acks_in_order(engines, pools):
    _, device = pools
    engine = make(engines, pools)
    pages = [device.read_page(slot) for slot in (3, 9, 4)]
    backup = engine.submit_backup(slots(5, 1, 2), slots(3, 9, 4), tag="b")
    assert backup.wait(BOUND)
    load = engine.submit_load([(slots(5), slots(0)), (slots(1, 2), slots(14, 7))], tag="l")
    assert load.wait(BOUND)
    assert [device.read_page(slot) for slot in (0, 14, 7)] == pages
    assert backup.error is None
    assert load.error is None
    assert (load.producer, load.pages, load.direction) == (0, 3, "load")
    assert [ack.tag for ack in engine.poll()] == ["b", "l"]
    assert engine.poll() == []
    assert engine.in_flight == 0
    assert "done" in repr(load)


def test_a_layer_is_there_when_its_wait_returns_while_later_ones_are_not(engines, pools):
    _, device = pools
    gate = Gate("load", 2)
    engine = make(engines, pools, gate)
    engine.submit_backup(slots(0), slots(3)).wait(BOUND)
    device.write_page(8, b"\xaa" * device.page_nbytes)
    load = engine.submit_load([(slots(0), slots(8))])
    assert gate.reached.wait(BOUND)
    for layer in (0, 1):
        engine.wait_layer(load.producer, layer, BOUND)
        assert device.k(layer)[8].tobytes() == device.k(layer)[3].tobytes()
        assert device.v(layer)[8].tobytes() == device.v(layer)[3].tobytes()
    with pytest.raises(TransferTimeoutError):
        engine.wait_layer(load.producer, 2, 0.0)
    assert (device.k(2)[8].view(np.uint8) == 0xAA).all()
    assert not load.done()
    gate.open.set()
    engine.wait_layer(load.producer, 3, BOUND)
    assert device.v(3)[8].tobytes() == device.v(3)[3].tobytes()
    assert load.wait(BOUND)


def test_a_backup_runs_beside_a_load_that_is_stuck(engines, pools):
    gate = Gate("load", 1)
    engine = make(engines, pools, gate)
    load = engine.submit_load([(slots(0), slots(8))])
    assert gate.reached.wait(BOUND)
    assert engine.submit_backup(slots(3), slots(3)).wait(BOUND)
    assert engine.in_flight == 1
    gate.open.set()
    assert load.wait(BOUND)


def test_a_load_that_fails_half_way_reaches_its_waiters(engines, pools):
    gate = Gate("load", 2, OSError("flipped bit"))
    engine = make(engines, pools, gate)
    load = engine.submit_load([(slots(0), slots(8))], tag="bad")
    other = engine.submit_load([(slots(1), slots(9))])
    gate.open.set()
    with pytest.raises(TransferError, match="flipped bit"):
        engine.wait_layer(load.producer, 3, BOUND)
    engine.wait_layer(load.producer, 1, BOUND)
    assert load.wait(BOUND)
    assert isinstance(load.error, TransferError)
    assert isinstance(load.error.__cause__, OSError)
    assert other.wait(BOUND)
    assert str(other.error) == "load of 1 pages failed: flipped bit"
    gate.error = None
    again = engine.submit_load([(slots(0), slots(8))])
    assert again.wait(BOUND)
    assert again.error is None


def test_a_backup_that_fails_says_so_and_the_thread_lives(engines, pools):
    gate = Gate("backup", 0, RuntimeError("no"))
    gate.open.set()
    engine = make(engines, pools, gate)
    ack = engine.submit_backup(slots(0), slots(1), tag=7)
    assert ack.wait(BOUND)
    assert str(ack.error) == "backup of 1 pages failed: no"
    assert "failed" in repr(ack)
    gate.error = None
    assert engine.submit_backup(slots(0), slots(1)).wait(BOUND)
    assert [one.error is None for one in engine.poll()] == [False, True]


def test_three_loads_at_once_and_not_a_fourth(engines, pools):
    gate = Gate("load", 0)
    engine = make(engines, pools, gate)
    acks = [engine.submit_load([(slots(0), slots(n))]) for n in range(3)]
    assert not engine.can_load()
    with pytest.raises(MisuseError, match=r"all 3 sets are in use"):
        engine.submit_load([(slots(0), slots(5))])
    gate.open.set()
    assert all(ack.wait(BOUND) for ack in acks)
    assert engine.can_load()
    assert [ack.producer for ack in acks] == [0, 1, 2]


def test_an_empty_load_completes_every_layer(engines, pools):
    engine = make(engines, pools)
    load = engine.submit_load([])
    for layer in range(4):
        engine.wait_layer(load.producer, layer, BOUND)
    assert load.wait(BOUND)
    assert load.pages == 0


def test_merged_backups_are_one_ack(engines, pools):
    _, device = pools
    engine = make(engines, pools)
    ack = engine.submit_backups([(slots(1), slots(2)), (slots(3, 4), slots(5, 6))])
    assert ack.wait(BOUND)
    assert ack.pages == 3
    load = engine.submit_load([(slots(1, 3, 4), slots(10, 11, 12))])
    assert load.wait(BOUND)
    assert [device.read_page(n) for n in (10, 11, 12)] == [device.read_page(n) for n in (2, 5, 6)]


def test_on_done_is_told_when_the_ack_can_be_polled(engines, pools):
    polled, told = [], threading.Event()
    engine = None

    def on_done(ack):
        assert ack.done()
        polled.extend(engine.poll())
        told.set()

    engine = make(engines, pools, on_done=on_done)
    ack = engine.submit_backup(slots(0), slots(1))
    assert told.wait(BOUND)
    assert polled == [ack]


def test_an_on_done_that_raises_ends_no_thread(pools):
    def on_done(ack):
        raise ValueError("observer")

    engine = TransferEngine(*pools, on_done=on_done)
    first = engine.submit_backup(slots(0), slots(1))
    second = engine.submit_backup(slots(0), slots(1))
    assert first.wait(BOUND)
    assert second.wait(BOUND)
    assert engine.close(BOUND)
    assert [str(error) for error in engine.escaped] == ["observer", "observer"]
    assert second.error is None


def test_close_ends_the_running_copy_and_fails_the_queued_ones(engines, pools):
    gate = Gate("load", 1)
    engine = make(engines, pools, gate)
    running = engine.submit_load([(slots(0), slots(1))])
    queued = engine.submit_load([(slots(0), slots(2))])
    assert gate.reached.wait(BOUND)
    assert not engine.close(timeout=0.0), "a copy runs"
    gate.open.set()
    assert engine.close(timeout=BOUND)
    assert running.error is None
    assert "closed before this copy began" in str(queued.error)
    with pytest.raises(TransferError, match="closed before"):
        engine.wait_layer(queued.producer, 0, BOUND)
    with pytest.raises(MisuseError, match="closed"):
        engine.submit_backup(slots(0), slots(1))
    assert [ack.done() for ack in engine.poll()] == [True, True]


def test_a_closed_engine_lets_the_pool_unmap(pools):
    host = make_host_pool(GEOMETRY, "page_first", 16, huge_pages="off", threads=1)
    engine = TransferEngine(host, pools[1])
    engine.submit_backup(slots(0), slots(1)).wait(BOUND)
    with pytest.raises(BufferError):
        host.close()
    assert engine.close(BOUND)
    host.close()


def test_an_engine_that_is_dropped_after_close_is_freed(pools):
    engine = TransferEngine(*pools)
    engine.submit_load([(slots(0), slots(1))]).wait(BOUND)
    engine.close(BOUND)
    gone = weakref.ref(engine)
    del engine
    gc.collect()
    assert gone() is None


def test_misuse_is_told_before_anything_moves(engines, pools):
    engine = make(engines, pools)
    with pytest.raises(MisuseError, match="equal length"):
        engine.submit_backup(slots(0, 1), slots(1))
    with pytest.raises(MisuseError, match="host slot out of range: the pool has 16"):
        engine.submit_backup(slots(16), slots(1))
    with pytest.raises(MisuseError, match="device slot out of range"):
        engine.submit_load([(slots(1), slots(-1))])
    assert engine.can_load()
    assert engine.in_flight == 0


def test_a_forked_child_is_refused(engines, pools, monkeypatch):
    engine = make(engines, pools)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(MisuseError, match="forked child"):
        engine.submit_backup(slots(0), slots(1))


def test_io_backends_by_name(pools):
    with pytest.raises(ConfigError, match=r"kernel_ascend.*NPU runtime"):
        TransferEngine(*pools, io_backend="kernel_ascend")
    with pytest.raises(UnknownNameError, match="did you mean 'direct'"):
        TransferEngine(*pools, io_backend="driect")
    with pytest.raises(ConfigError, match="page_first_direct"):
        TransferEngine(*pools, io_backend="direct")
    host, _ = pools
    with pytest.raises(ConfigError, match="pools differ"):
        TransferEngine(host, NumpyDevicePool(KVGeometry("mha", 4, 2, 8, dtype="float32", page_size=4), 4))


def test_copies_race_with_no_lost_page(engines, pools):
    """Backups and loads of disjoint slots, many in flight: every page ends where it should."""
    _, device = pools
    engine = make(engines, pools)
    want = [device.read_page(slot) for slot in range(8)]
    random = np.random.default_rng(0)
    for _ in range(40):
        order = random.permutation(8)
        backups = [engine.submit_backup(slots(int(n)), slots(int(n))) for n in order]
        assert all(ack.wait(BOUND) for ack in backups)
        loads = [engine.submit_load([(part, part + 8)]) for part in np.array_split(order, 3)]
        assert all(ack.wait(BOUND) for ack in loads)
        assert [device.read_page(slot + 8) for slot in range(8)] == want
        for slot in range(8, 16):
            device.write_page(slot, b"\xaa" * device.page_nbytes)
    assert all(ack.error is None for ack in engine.poll())
