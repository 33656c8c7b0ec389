"""The backend `memory`, called directly."""

from __future__ import annotations

from typing import Any

import pytest

from hicache_core.errors import StorageError
from hicache_core.plugin.discovery import find_backend
from hicache_core.storage.memory import MemoryOptions, forget_store, open_memory
from hicache_core.types import IoContext, OpenContext, Outcome

CTX = OpenContext("0" * 32)
A, B = "ns/a", "ns/a/b"


def opened(**options: Any) -> Any:
    return open_memory(MemoryOptions(**options), CTX)


def put(backend: Any, key: str, data: bytes, replace: bool = False) -> Outcome:
    (outcome,) = backend.batch_set([key], [[memoryview(data)]], IoContext(replace=replace))
    assert isinstance(outcome, Outcome)
    return outcome


def take(backend: Any, key: str, nbytes: int) -> tuple[Outcome, bytes]:
    room = bytearray(b"\xaa" * nbytes)
    (outcome,) = backend.batch_get([key], [[memoryview(room)]], IoContext())
    return outcome, bytes(room)


def test_it_is_found_by_name() -> None:
    spec = find_backend("memory")
    assert spec.options is MemoryOptions
    assert spec.capabilities_for(MemoryOptions()).delete == "immediate"


def test_set_get_delete() -> None:
    backend = opened()
    assert put(backend, A, b"one") is Outcome.STORED
    assert put(backend, A, b"two") is Outcome.EXISTS
    assert take(backend, A, 3) == (Outcome.HIT, b"one")
    assert put(backend, A, b"two", replace=True) is Outcome.STORED
    assert take(backend, A, 3) == (Outcome.HIT, b"two")
    assert put(backend, B, b"below") is Outcome.STORED
    assert backend.batch_exists([A, B, "ns/c", A]) == 2
    assert backend.batch_contains(["ns/c", A]) == [False, True]
    assert backend.delete([A, A]) == [Outcome.HIT, Outcome.MISS]
    assert take(backend, B, 5) == (Outcome.HIT, b"below")


def test_lengths() -> None:
    backend = opened()
    put(backend, A, b"12345")
    assert take(backend, A, 4) == (Outcome.CORRUPT, b"\xaa" * 4)
    assert take(backend, A, 6) == (Outcome.CORRUPT, b"\xaa" * 6)
    assert take(backend, B, 2) == (Outcome.MISS, b"\xaa" * 2)
    room = [memoryview(bytearray(4)), memoryview(bytearray(4))]
    ctx = IoContext(lengths=[0])
    assert backend.batch_get([A], [room], ctx) == [Outcome.HIT]
    assert (ctx.lengths, bytes(room[0]) + bytes(room[1])) == ([5], b"12345\0\0\0")


def test_room() -> None:
    backend = opened(max_bytes=10)
    assert put(backend, A, b"123456") is Outcome.STORED
    assert put(backend, B, b"12345") is Outcome.REJECTED
    assert put(backend, A, b"1234567890", replace=True) is Outcome.STORED
    assert put(backend, A, b"12345678901", replace=True) is Outcome.REJECTED
    assert take(backend, A, 10) == (Outcome.HIT, b"1234567890")
    backend.delete([A])
    assert put(backend, B, b"12345") is Outcome.STORED
    assert backend.stats().bytes == 5


@pytest.mark.parametrize("key", ["", "/", "a//b", "../x", "a/./b", "A", "a b", "a" * 201, "é", "a/.."])
def test_illegal_keys_are_refused(key: str) -> None:
    backend = opened()
    assert put(backend, key, b"x") is Outcome.REJECTED
    assert take(backend, key, 1)[0] is Outcome.MISS
    assert backend.delete([key]) == [Outcome.MISS]
    assert backend.clear(key) == 0
    assert backend.scan(None, None) == ([], None)


def test_clear_and_scan_keep_to_a_namespace() -> None:
    backend = opened()
    keys = [f"ns/{i:04}" for i in range(2500)] + ["ns2/a", "n/a"]
    for key in keys:
        put(backend, key, b"x")
    found, cursor = [], None
    while True:
        entries, cursor = backend.scan("ns", cursor)
        found += [key for key, nbytes, mtime in entries]
        if cursor is None:
            break
    assert found == keys[:2500]
    assert backend.clear("ns") == 2500
    assert [key for key, _, _ in backend.scan(None, None)[0]] == ["n/a", "ns2/a"]


def test_a_named_store_is_shared_and_outlives_its_sessions() -> None:
    one, two, other = opened(name="shared"), opened(name="shared"), opened()
    try:
        put(one, A, b"x")
        assert two.batch_exists([A]) == 1
        assert other.batch_exists([A]) == 0
        one.close()
        one.close()
        with pytest.raises(StorageError, match="closed"):
            one.batch_exists([A])
        assert opened(name="shared").batch_exists([A]) == 1
    finally:
        forget_store("shared")
    assert opened(name="shared").batch_exists([A]) == 0
    forget_store("shared")


def test_stats_tell_bytes_moved() -> None:
    backend = opened()
    put(backend, A, b"12345")
    put(backend, A, b"12345")
    take(backend, A, 5)
    take(backend, B, 5)
    stats = backend.stats()
    assert (stats.pages, stats.bytes_written, stats.bytes_read) == (1, 5, 5)
