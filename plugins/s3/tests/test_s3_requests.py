"""How many requests there are, how many at once, and what becomes of those that fail."""

import threading
import time

import pytest

from hicache_core.errors import StorageError
from hicache_core.types import IoContext, Outcome

KEYS = 128


class Rounds:
    """Holds requests up until `width` of them wait at once, then lets these go: each release is a round trip."""

    def __init__(self, stand_in, width):
        self.stand_in, self.width = stand_in, width
        self.released = 0
        self._waiting = 0
        self._condition = threading.Condition()

    def __call__(self, method, path):
        if method != "HEAD":
            return
        with self._condition:
            self._waiting += 1
            turn = self.released
            if self._waiting == self.width:
                self.released, self._waiting = turn + 1, 0
                self._condition.notify_all()
            assert self._condition.wait_for(lambda: self.released > turn, 30), "too few requests at once"


@pytest.mark.parametrize("hook", ["batch_exists", "batch_contains"])
def test_128_keys_are_asked_for_within_four_round_trips(stand_in, open_at, hook):
    store = open_at(**stand_in.options)
    keys = [store.key(n) for n in range(KEYS)]
    store.set(*keys)
    before = stand_in.count("HEAD")
    stand_in.gate = rounds = Rounds(stand_in, KEYS // 4)
    answer = getattr(store.backend, hook)(keys, IoContext())
    assert answer in (KEYS, [True] * KEYS)
    assert rounds.released <= 4
    assert stand_in.count("HEAD") - before == KEYS, "one request a key, no more"


def test_exists_asks_little_further_than_the_first_hole(stand_in, open_at):
    store = open_at(**stand_in.options, exists_concurrency=8)
    keys = [store.key(n) for n in range(KEYS)]
    store.set(keys[0], keys[1], keys[3])
    before = stand_in.count("HEAD")
    assert store.exists(*keys) == 2
    assert stand_in.count("HEAD") - before < KEYS // 2


def test_a_page_costs_one_request(stand_in, open_at):
    store = open_at(**stand_in.options)
    keys = [store.key(n) for n in range(20)]
    puts, gets = stand_in.count("PUT"), stand_in.count("GET")
    store.set(*keys)
    assert stand_in.count("PUT") - puts == 20
    assert stand_in.count("HEAD") == 0
    for key in keys:
        assert store.get(key)[0] is Outcome.HIT
    assert stand_in.count("GET") - gets == 20


def test_at_most_concurrency_pages_are_in_flight(stand_in, open_at):
    store = open_at(**stand_in.options, concurrency=3)
    keys = [store.key(n) for n in range(20)]
    store.set(*keys)
    lock, now, most = threading.Lock(), [0], [0]

    def gate(method, path):
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        threading.Event().wait(0.005)  # makes an overlap likely; the assertion holds without it
        with lock:
            now[0] -= 1

    stand_in.gate = gate
    pages = [[memoryview(bytearray(1064))] for _ in keys]
    assert store.backend.batch_get(keys, pages, IoContext()) == [Outcome.HIT] * 20
    assert most[0] <= 3


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        ((507, "XMinioStorageFull"), Outcome.REJECTED),
        ((403, "QuotaExceeded"), Outcome.REJECTED),
        ((400, "EntityTooLarge"), Outcome.REJECTED),
        ((403, "AccessDenied"), Outcome.UNAVAILABLE),
        ((404, "NoSuchBucket"), Outcome.UNAVAILABLE),
        ((503, "SlowDown"), Outcome.UNAVAILABLE),
        ((500, "InternalError"), Outcome.UNAVAILABLE),
    ],
)
def test_how_a_refused_put_reads(stand_in, open_at, answer, outcome):
    store = open_at(**stand_in.options, retries=1)
    stand_in.fail = lambda method, path: answer
    assert store.set(store.key(1)) == [outcome]
    stats = store.backend.stats()
    assert stats.errors == 1
    assert answer[1] in stats.last_error
    assert stats.rejected == (outcome is Outcome.REJECTED)


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        ((404, "NoSuchKey"), Outcome.MISS),
        ((404, "NoSuchBucket"), Outcome.UNAVAILABLE),
        ((403, "AccessDenied"), Outcome.UNAVAILABLE),
        ((503, "SlowDown"), Outcome.UNAVAILABLE),
    ],
)
def test_how_a_refused_get_reads(stand_in, open_at, answer, outcome):
    store = open_at(**stand_in.options, retries=0)
    store.set(store.key(1))
    stand_in.fail = lambda method, path: answer
    assert store.get(store.key(1)) == (outcome, bytes(1000))


def test_a_failure_of_a_moment_is_not_told(stand_in, open_at):
    store = open_at(**stand_in.options, retries=2)
    failures = iter([(503, "SlowDown"), (500, "InternalError")])
    stand_in.fail = lambda method, path: next(failures, None)
    assert store.set(store.key(1)) == [Outcome.STORED]
    assert store.backend.stats().errors == 0


def test_retries_are_bounded(stand_in, open_at):
    store = open_at(**stand_in.options, retries=3)
    stand_in.fail = lambda method, path: (503, "SlowDown")
    before = stand_in.count("GET")
    assert store.get(store.key(1))[0] is Outcome.UNAVAILABLE
    assert stand_in.count("GET") - before == 4


def test_exists_of_a_server_that_fails_raises(stand_in, open_at):
    store = open_at(**stand_in.options, retries=0)
    stand_in.fail = lambda method, path: (503, "SlowDown")
    with pytest.raises(StorageError, match="503"):
        store.exists(store.key(1), store.key(2))


def test_of_a_dead_server_only_a_few_pages_are_tried(stand_in, open_at):
    store = open_at(**stand_in.options, retries=0, concurrency=2)
    stand_in.fail = lambda method, path: (503, "SlowDown")
    before = stand_in.count("PUT")
    assert store.set(*(store.key(n) for n in range(KEYS))) == [Outcome.UNAVAILABLE] * KEYS
    assert stand_in.count("PUT") - before < 8


def test_one_bad_page_does_not_fail_its_neighbours(stand_in, open_at):
    store = open_at(**stand_in.options, retries=0)
    keys = [store.key(n) for n in range(40)]
    store.set(*keys)
    stand_in.fail = lambda method, path: (500, "InternalError") if f"{7:064x}" in path else None
    pages = [[memoryview(bytearray(1064))] for _ in keys]
    outcomes = store.backend.batch_get(keys, pages, IoContext())
    assert outcomes[7] is Outcome.UNAVAILABLE
    assert outcomes[:7] + outcomes[8:] == [Outcome.HIT] * 39


@pytest.fixture
def stalled(stand_in):
    """A server that answers nothing more until the event is set."""
    release = threading.Event()
    yield lambda: setattr(stand_in, "gate", lambda method, path: release.wait(30)) or release
    release.set()


def test_a_get_that_stalls_ends_at_its_deadline_and_its_page_stays_as_it_is(stand_in, open_at, stalled):
    store = open_at(**stand_in.options)
    store.set(store.key(1))
    release = stalled()
    page = bytearray(b"\xaa" * 1064)
    start = time.monotonic()
    outcomes = store.backend.batch_get([store.key(1)], [[memoryview(page)]], IoContext(deadline=start + 0.3))
    assert outcomes == [Outcome.TIMEOUT]
    assert page == b"\xaa" * 1064
    release.set()
    store.backend.close()  # waits for the request that came too late
    assert page == b"\xaa" * 1064


def test_a_set_that_stalls_cannot_store_what_its_page_became_later(stand_in, open_at, stalled):
    store = open_at(**stand_in.options)
    release = stalled()
    page = bytearray(b"\x01" * 1064)
    deadline = time.monotonic() + 0.3
    assert store.backend.batch_set([store.key(1)], [[memoryview(page)]], IoContext(deadline=deadline)) == [
        Outcome.TIMEOUT
    ]
    page[:] = b"\x02" * 1064
    release.set()
    store.backend.close()
    assert set(stand_in.objects.get(f"/bucket/kv/{store.key(1)}", b"\x01")) == {1}


def test_an_exists_that_stalls_raises_at_its_deadline(stand_in, open_at, stalled):
    store = open_at(**stand_in.options)
    stalled()
    with pytest.raises(StorageError, match="deadline"):
        store.exists(store.key(1), deadline=time.monotonic() + 0.3)
