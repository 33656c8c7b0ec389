"""Pages through AIBrix's connectors: bytes, lengths, who was first, and what goes wrong with one page only."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hicache_aibrix.errors import AibrixError, AnotherLengthError, RevokedError
from hicache_aibrix.region import PageRegion
from hicache_aibrix.store import block_hash

from hicache_core.errors import MisuseError
from hicache_core.namespace import Identity
from hicache_core.storage import open_session
from hicache_core.types import IoContext, Outcome

IDENTITY = Identity("m", "declared:w", "uint8", 4, "mha", 1, 1, 8)
KEYS = [f"{'0' * 32}/{n:064x}.kv.l0-1h0-1" for n in range(6)]
Open = Callable[..., Any]


def page(fill: bytes, nbytes: int = 96) -> list[memoryview]:
    return [memoryview(bytearray(fill * 64)), memoryview(bytearray(fill * nbytes))]


def test_pages_come_back_through_another_session(options: dict[str, Any]) -> None:
    hashes, data = ["a" * 64, "b" * 64], [bytearray(b"1" * 500), bytearray(b"2" * 500)]
    with open_session("aibrix", identity=IDENTITY, options=options) as session:
        assert session.set(hashes, [[memoryview(one)] for one in data]) == [Outcome.STORED] * 2
    with open_session("aibrix", identity=IDENTITY, options=options) as session:
        assert session.exists([*hashes, "c" * 64]) == 2
        into = [bytearray(500), bytearray(500)]
        assert session.get(hashes, [[memoryview(one)] for one in into]) == [Outcome.HIT] * 2
        assert into == data


def test_pages_of_every_size_live_in_one_store(options: dict[str, Any], opened: Open) -> None:
    backend = opened(options)
    sizes = [0, 1, 96, 4096, 1 << 20]
    pages = [page(bytes([65 + n]), size) for n, size in enumerate(sizes)]
    assert backend.batch_set(KEYS[:5], pages, IoContext()) == [Outcome.STORED] * 5
    into = [page(b"\0", size) for size in sizes]
    assert backend.batch_get(KEYS[:5], into, IoContext()) == [Outcome.HIT] * 5
    assert [[bytes(b) for b in one] for one in into] == [[bytes(b) for b in one] for one in pages]
    assert backend.stats().bytes_written == backend.stats().bytes_read == sum(sizes) + 5 * 64


def test_a_stored_length_that_is_another_is_damage(options: dict[str, Any], opened: Open) -> None:
    backend = opened(options)
    assert backend.batch_set(KEYS[:1], [page(b"x", 96)], IoContext()) == [Outcome.STORED]
    for nbytes in (95, 97):
        into = page(b"\0", nbytes)
        assert backend.batch_get(KEYS[:1], [into], IoContext()) == [Outcome.CORRUPT]
        assert not any(into[1]), "an object of another length was written into the page"


def test_the_first_stays_and_the_others_are_told(options: dict[str, Any], opened: Open) -> None:
    backend = opened(options)
    batch = [KEYS[0], KEYS[1], KEYS[0]]
    outcomes = backend.batch_set(batch, [page(b"1"), page(b"2"), page(b"3")], IoContext())
    assert outcomes == [Outcome.STORED, Outcome.STORED, Outcome.EXISTS]
    assert backend.batch_set(KEYS[:1], [page(b"4", 7)], IoContext()) == [Outcome.EXISTS]
    into = page(b"\0")
    assert backend.batch_get(KEYS[:1], [into], IoContext()) == [Outcome.HIT]
    assert bytes(into[1]) == b"1" * 96
    assert backend.batch_set(KEYS[:1], [page(b"5", 7)], IoContext(replace=True)) == [Outcome.STORED]
    assert backend.batch_get(KEYS[:1], [page(b"\0", 7)], IoContext()) == [Outcome.HIT]


def test_exists_is_the_run_from_the_start_and_contains_each_key(options: dict[str, Any], opened: Open) -> None:
    backend = opened(options)
    backend.batch_set([KEYS[0], KEYS[1], KEYS[3]], [page(b"x")] * 3, IoContext())
    assert backend.batch_exists(KEYS[:4], IoContext()) == 2
    assert backend.batch_exists(KEYS[2:], IoContext()) == 0
    assert backend.batch_exists([], IoContext()) == 0
    assert backend.batch_contains(KEYS[:4], IoContext()) == [True, True, False, True]
    assert backend.delete(KEYS[:3], IoContext()) == [Outcome.HIT, Outcome.HIT, Outcome.MISS]
    assert backend.batch_contains(KEYS[:4], IoContext()) == [False, False, False, True]


def test_one_page_that_fails_leaves_its_neighbours(options: dict[str, Any], opened: Open) -> None:
    backend = opened(options)
    backend.batch_set(KEYS[:3], [page(b"x")] * 3, IoContext())
    connector, broken = backend.connector, block_hash(KEYS[1])
    inner = connector._get
    connector._get = lambda key, region: 1 // 0 if key == broken else inner(key, region)
    outcomes = backend.batch_get(KEYS[:3], [page(b"\0")] * 3, IoContext())
    assert outcomes == [Outcome.HIT, Outcome.UNAVAILABLE, Outcome.HIT]
    assert backend.stats().errors == 1
    assert "ZeroDivisionError" in backend.stats().last_error


def test_a_store_that_does_not_answer_exists_is_no_miss(options: dict[str, Any], opened: Open) -> None:
    from aibrix_kvcache import Status, StatusCodes

    backend = opened(options)
    backend.connector._exists = lambda key: Status(StatusCodes.ERROR, "no answer")
    with pytest.raises(AibrixError, match="no answer"):
        backend.batch_exists(KEYS[:2], IoContext())


def test_a_call_that_is_late_is_given_up_and_touches_nothing_afterwards(
    options: dict[str, Any], opened: Open
) -> None:
    """One page hangs inside the connector: TIMEOUT for it, HIT for the other, and its memory is not written later."""
    backend = opened(options)
    backend.batch_set(KEYS[:2], [page(b"x")] * 2, IoContext())
    stuck, go_on, ended = block_hash(KEYS[0]), threading.Event(), threading.Event()
    inner, raised = backend.connector._get, []

    def slow(key: bytes, region: PageRegion) -> Any:
        if key != stuck:
            return inner(key, region)
        go_on.wait(60)
        try:
            region.fill(b"y" * region.length)
        except RevokedError as error:
            raised.append(error)
        finally:
            ended.set()
        return None

    backend.connector._get = slow
    into = [page(b"\0"), page(b"\0")]
    outcomes = backend.batch_get(KEYS[:2], into, IoContext(deadline=time.monotonic() + 0.3))
    assert outcomes == [Outcome.TIMEOUT, Outcome.HIT]
    go_on.set()
    assert ended.wait(60)
    assert raised
    assert not any(into[0][1])


def test_a_region_tells_lengths_and_ends_with_its_call() -> None:
    region = PageRegion(page(b"a", 10))
    assert (region.length, len(region.tobytes())) == (74, 74)
    with pytest.raises(AnotherLengthError, match="73 bytes are stored, the page has 74"):
        region.fill(b"b" * 73)
    region.revoke()
    for call in (region.tobytes, lambda: region.fill(b"c" * 74)):
        with pytest.raises(RevokedError):
            call()


def test_block_hashes_are_of_the_whole_key() -> None:
    long = "n" * 32 + "/" + "a" * 160
    hashes = {block_hash(key) for key in (long + "b", long + "c", "a/b", "a-b", "ab/c")}
    assert len(hashes) == 5
    assert all(len(value) == 64 for value in hashes)


def test_illegal_keys_touch_nothing(options: dict[str, Any], opened: Open) -> None:
    backend = opened(options)
    for key in ("../x", "/x", "a//b", "A", "a/../b", "x" * 201, ""):
        assert backend.batch_set([key], [page(b"x")], IoContext()) == [Outcome.REJECTED]
        assert backend.batch_get([key], [page(b"x")], IoContext()) == [Outcome.MISS]
        assert backend.batch_exists([key], IoContext()) == 0
        assert backend.delete([key], IoContext()) == [Outcome.MISS]


def test_close_leaves_no_thread_and_no_descriptor(options: dict[str, Any], opened: Open) -> None:
    opened(options).close()  # what imports leave behind is there now
    threads, descriptors = threading.active_count(), len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        backend = opened(options)
        backend.batch_set(KEYS, [page(b"x")] * 6, IoContext())
        backend.batch_get(KEYS, [page(b"\0")] * 6, IoContext())
        backend.close()
        backend.close()
        with pytest.raises(MisuseError, match="closed"):
            backend.batch_exists(KEYS, IoContext())
    assert threading.active_count() == threads
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_closing_under_a_call_waits_for_it(options: dict[str, Any], opened: Open) -> None:
    backend = opened(options)
    backend.batch_set(KEYS[:1], [page(b"x")], IoContext())
    inside, go_on, found = threading.Event(), threading.Event(), []
    inner = backend.connector._get

    def slow(key: bytes, region: PageRegion) -> Any:
        inside.set()
        go_on.wait(60)
        return inner(key, region)

    backend.connector._get = slow
    call = threading.Thread(target=lambda: found.extend(backend.batch_get(KEYS[:1], [page(b"\0")], IoContext())))
    call.start()
    assert inside.wait(60)
    backend.close()
    go_on.set()
    call.join(60)
    assert found == [Outcome.HIT]


def test_aibrix_leaves_the_event_loop_policy_alone(options: dict[str, Any], opened: Open, tmp_path: Path) -> None:
    import asyncio

    opened(options)
    assert "uvloop" not in type(asyncio.get_event_loop_policy()).__module__
