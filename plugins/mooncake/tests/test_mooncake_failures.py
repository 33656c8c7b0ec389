"""What the store does to its users: a dead master, a dead owner, no room, replicas; and that it mends by itself."""

import signal
import threading
import time

import pytest
from hicache_mooncake.latch import Latch

from hicache_core.errors import StorageError
from hicache_core.types import IoContext, Outcome

HIT, MISS, STORED, REJECTED, UNAVAILABLE = (
    Outcome.HIT,
    Outcome.MISS,
    Outcome.STORED,
    Outcome.REJECTED,
    Outcome.UNAVAILABLE,
)


def eventually(check, within=30.0):
    """Ask until it is so; what a server does in its own time announces itself in no other way."""
    until, pause = time.monotonic() + within, threading.Event()
    while True:
        try:
            if check():
                return
        except StorageError:
            pass
        assert time.monotonic() < until, "it never came to be"
        pause.wait(0.1)


def test_a_dead_master_fails_at_once_and_comes_back_by_itself(serve, connect):
    server = serve(segment_bytes=128 << 20)
    handle = connect(**server.options, retry_interval=0.1)
    keys = handle.keys(4)
    assert handle.set(keys) == [STORED] * 4
    server.processes[0].kill()
    with pytest.raises(StorageError, match=r"master .* d(id|oes) not answer"):
        handle.there(keys)
    for _ in range(20):  # each would block for seconds without the latch
        with pytest.raises(StorageError):
            handle.set(keys)
        with pytest.raises(StorageError):
            handle.get(keys[0])
    assert handle.backend._client.latch.trouble
    server.processes[0].start()
    eventually(lambda: handle.set(keys) == [STORED] * 4)
    assert handle.get(keys[0]) == (HIT, {1})
    assert not handle.backend._client.latch.trouble


def test_a_master_that_hangs_is_found_out_by_the_knock(serve, connect):
    server = serve(owners=0, segment_bytes=64 << 20)
    handle = connect(**server.options, rpc_timeout=0.5, connect_timeout=0.3, retry_interval=0.1)
    [key] = handle.keys(1)
    handle.set([key])
    server.processes[0]._process.send_signal(signal.SIGSTOP)
    try:
        with pytest.raises(StorageError):
            handle.there([key])
        with pytest.raises(StorageError, match="does not answer"):
            handle.there([key])
    finally:
        server.processes[0]._process.send_signal(signal.SIGCONT)
    eventually(lambda: handle.there([key]) == [True])


def test_a_dead_owner_takes_its_pages_and_a_new_one_is_used(serve, connect):
    server = serve(segment_bytes=64 << 20, master_flags=("--client_ttl=2",))
    handle = connect(**server.options)
    [key] = handle.keys(1)
    handle.set([key])
    server.processes[1].kill()
    assert handle.get(key)[0] in (MISS, UNAVAILABLE, Outcome.TIMEOUT)
    server.processes[1].start()
    eventually(lambda: handle.set(handle.keys(1)) == [STORED])


def test_a_full_store_rejects_page_by_page_and_evicts(serve, connect):
    server = serve(owners=0, segment_bytes=32 << 20, lease_milliseconds=100)
    handle = connect(**server.options)
    keys = handle.keys(96)
    outcomes = handle.set(keys, size=1 << 20)
    assert set(outcomes) == {STORED, REJECTED}
    stored = [key for key, outcome in zip(keys, outcomes, strict=True) if outcome]
    rejected = [key for key in keys if key not in stored]
    assert not any(handle.there(rejected))
    assert handle.get(stored[-1], 1 << 20)[0] in (HIT, MISS)
    eventually(lambda: handle.set(handle.keys(1), size=1 << 20) == [STORED])


def test_no_room_at_all_is_rejected(serve, connect):
    handle = connect(**serve(owners=0).options | {"segment_size": 0})
    assert handle.set(handle.keys(2)) == [REJECTED] * 2


def test_replicas_outlive_an_owner(serve, connect):
    server = serve(owners=2, segment_bytes=64 << 20, master_flags=("--client_ttl=2",))
    handle = connect(**server.options, replicas=2, soft_pin=True)
    keys = handle.keys(16)
    assert handle.set(keys) == [STORED] * 16
    server.processes[1].kill()
    eventually(lambda: all(handle.get(key) == (HIT, {1}) for key in keys))


def test_the_latch_lets_one_thread_find_out():
    now, knocks = [0.0], []
    answers = iter(["gone", "gone", ""])

    def knock():
        knocks.append(now[0])
        return next(answers)

    latch = Latch(knock, 0.5, clock=lambda: now[0])
    latch.check()
    assert knocks == []  # an answer vouches for a second
    now[0] = 2.0
    with pytest.raises(StorageError, match="gone"):
        latch.check()
    now[0] = 2.4
    with pytest.raises(StorageError, match="gone"):
        latch.check()
    assert knocks == [2.0]
    now[0] = 2.6
    with pytest.raises(StorageError):
        latch.check()
    now[0] = 3.2
    latch.check()
    assert (knocks, latch.trouble, latch.trips) == ([2.0, 2.6, 3.2], "", 1)
    latch.silent("again")
    with pytest.raises(StorageError, match="again"):
        latch.check()


def test_waiting_for_a_writer_ends(connect):
    """A key that was begun and never finished is a miss, after a bounded wait."""
    handle = connect()
    [key] = handle.keys(1)
    sdk = handle.backend._client.sdk
    assert sdk.batch_put_session_start([key], [4160]) == [0]
    assert handle.get(key) == (MISS, {0xAA})
    assert handle.there([key]) == [False]
    sdk.batch_put_session_revoke([key])
    assert handle.backend.batch_set([key], [handle.page(2)], IoContext()) == [STORED]
    assert handle.get(key) == (HIT, {2})
