"""Clients that move one buffer per object: arenas are lent to one call at a time, and the client outlives them."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

from hicache_core.storage.contiguous import Arenas, RemovingBackend
from hicache_core.types import IoContext, Outcome

KEYS = [f"n/{letter}" for letter in "abcdefgh"]


class Client:
    """Objects in a dict; notes how they came."""

    header_bytes = 4

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.calls: list[list[str]] = []
        self.closed = 0
        self.gate: threading.Event | None = None
        self.inside = threading.Event()

    def exists(self, keys: Sequence[str], ctx: IoContext) -> list[bool]:
        return [key in self.objects for key in keys]

    def put(self, keys: Sequence[str], objects: Sequence[memoryview], ctx: IoContext) -> list[Outcome]:
        self.calls.append(list(keys))
        if self.gate is not None:
            self.inside.set()
            assert self.gate.wait(30)
        self.objects |= {key: bytes(data[4:]) for key, data in zip(keys, objects, strict=True)}
        return [Outcome.STORED] * len(keys)

    def get(self, keys: Sequence[str], objects: Sequence[memoryview], ctx: IoContext) -> list[Any]:
        self.calls.append(list(keys))
        answers: list[Any] = []
        for key, data in zip(keys, objects, strict=True):
            stored = self.objects.get(key)
            if stored is not None:
                data[4 : 4 + len(stored)] = stored[: data.nbytes - 4]
            answers.append(Outcome.MISS if stored is None else len(stored))
        return answers

    def remove(self, keys: Sequence[str], ctx: IoContext) -> list[Outcome]:
        return [Outcome.HIT if self.objects.pop(key, None) is not None else Outcome.MISS for key in keys]

    def close(self) -> None:
        self.closed += 1


def backend(client: Client, arenas: int = 1, nbytes: int = 256, **how: Any) -> RemovingBackend:
    return RemovingBackend(client, Arenas([memoryview(bytearray(nbytes)) for _ in range(arenas)]), **how)


def page(text: bytes) -> list[memoryview]:
    return [memoryview(bytearray(text[:3])), memoryview(bytearray(text[3:]))]


def test_buffers_are_put_together_and_taken_apart() -> None:
    client = Client()
    store = backend(client)
    pages = [page(f"page {n} {'x' * n}".encode()) for n in range(8)]
    assert store.batch_set(KEYS, pages, IoContext()) == [Outcome.STORED] * 8
    assert client.objects[KEYS[2]] == b"page 2 xx"
    into = [page(bytes(len(client.objects[key]))) for key in KEYS]
    assert store.batch_get(KEYS, into, IoContext()) == [Outcome.HIT] * 8
    assert into == pages


def test_an_arena_that_is_too_small_for_the_batch_is_filled_again() -> None:
    client = Client()
    store = backend(client, nbytes=200)
    assert store.batch_set(KEYS[:5], [page(b"y" * 60)] * 5, IoContext()) == [Outcome.STORED] * 5
    assert client.calls == [KEYS[:3], KEYS[3:5]]


def test_a_page_larger_than_an_arena_harms_no_neighbour() -> None:
    client = Client()
    store = backend(client, nbytes=200)
    pages = [page(b"a" * 20), page(b"b" * 400), page(b"c" * 20)]
    assert store.batch_set(KEYS[:3], pages, IoContext()) == [Outcome.STORED, Outcome.REJECTED, Outcome.STORED]
    assert store.batch_get(KEYS[:3], pages, IoContext()) == [Outcome.HIT, Outcome.MISS, Outcome.HIT]


@pytest.mark.parametrize("keeps_first", [False, True])
def test_equal_keys_of_a_batch_keep_the_first(keeps_first: bool) -> None:
    client = Client()
    store = backend(client, keeps_first=keeps_first)
    pages = [page(b"first page"), page(b"other page"), page(b"last  page")]
    answers = store.batch_set([KEYS[0], KEYS[1], KEYS[0]], pages, IoContext())
    assert answers == [Outcome.STORED, Outcome.STORED, Outcome.EXISTS]
    assert client.objects[KEYS[0]] == b"first page"
    assert store.batch_set(KEYS[:1], [page(b"new    one")], IoContext(replace=True)) == [Outcome.STORED]
    assert client.objects[KEYS[0]] == b"new    one"


def test_illegal_keys_touch_nothing() -> None:
    client = Client()
    store = backend(client)
    bad = ["n/../x", "N/a", ""]
    assert store.batch_set(bad, [page(b"xxxx")] * 3, IoContext()) == [Outcome.REJECTED] * 3
    assert store.batch_get(bad, [page(b"xxxx")] * 3, IoContext()) == [Outcome.MISS] * 3
    assert store.delete(bad, IoContext()) == [Outcome.MISS] * 3
    assert store.batch_exists(bad, IoContext()) == 0
    assert client.calls == []


def test_without_a_free_arena_a_call_gives_up_at_its_deadline_and_the_client_is_closed_by_the_last_call() -> None:
    client = Client()
    client.gate = threading.Event()
    store = backend(client)
    answers: list[Any] = []
    held = threading.Thread(
        target=lambda: answers.append(store.batch_set(KEYS[:1], [page(b"slow page")], IoContext()))
    )
    held.start()
    assert client.inside.wait(30)
    late = IoContext(deadline=time.monotonic())
    assert store.batch_set(KEYS[1:2], [page(b"no memory")], late) == [Outcome.TIMEOUT]
    store.close()
    assert client.closed == 0
    assert store.batch_set(KEYS[1:2], [page(b"after end")], IoContext()) == [Outcome.TIMEOUT]
    client.gate.set()
    held.join(30)
    assert answers == [[Outcome.STORED]]
    store.close()
    assert client.closed == 1
