"""A session against a dict: whatever is done in whatever order, the answers are those of a dict of pages."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hicache_core.errors import MisuseError
from hicache_core.types import Outcome

HASHES = 8
step = st.tuples(
    st.sampled_from(["set", "replace", "get", "exists", "contains", "delete", "clear"]),
    st.lists(st.integers(0, HASHES - 1), max_size=12),
    st.integers(0, 5),
)


def apply(kit: Any, session: Any, model: dict[int, bytes], what: str, numbers: list[int], version: int) -> None:
    names = kit.hashes(HASHES)
    hashes = [names[i] for i in numbers]
    if what in ("set", "replace"):
        data = [kit.data(1, 100 * version + i)[0] for i in numbers]
        expected = []
        for i, page in zip(numbers, data, strict=True):
            expected.append(Outcome.EXISTS if what == "set" and i in model else Outcome.STORED)
            if what == "replace":
                model[i] = page
            else:
                model.setdefault(i, page)
        assert session.set(hashes, [[page] for page in data], replace=what == "replace") == expected
    elif what == "get":
        rooms = kit.rooms(len(numbers))
        outcomes = session.get(hashes, rooms)
        assert outcomes == [Outcome.HIT if i in model else Outcome.MISS for i in numbers]
        for i, room, outcome in zip(numbers, rooms, outcomes, strict=True):
            assert kit.bytes_of(room) == (model[i] if outcome else b"\xaa" * kit.page_bytes)
    elif what == "exists":
        assert session.exists(hashes) == len(list(itertools.takewhile(model.__contains__, numbers)))
    elif what == "contains":
        assert session.contains(hashes) == [i in model for i in numbers]
    elif what == "delete":
        expected = [Outcome.HIT if model.pop(i, None) is not None else Outcome.MISS for i in numbers]
        assert session.delete(hashes) == expected
    else:
        assert session.clear() == len(model)
        model.clear()


@settings(max_examples=60, deadline=None)
@given(steps=st.lists(step, max_size=25))
def test_a_session_is_a_dict(steps: list[tuple[str, list[int], int]]) -> None:
    from hicache_core.namespace import Identity
    from hicache_core.storage import open_session

    identity = Identity("model", "declared:w", "float16", 16, "mha", layer_num=2, head_num=2, head_dim=2)
    session = open_session("memory", identity=identity)
    model: dict[int, bytes] = {}
    try:
        for what, numbers, version in steps:
            apply(KIT, session, model, what, numbers, version)
        assert session.ledger.as_dict()["violations"] == {}
    finally:
        assert session.close().clean


class _Kit:
    """The part of the fixture that needs no session, for use inside Hypothesis."""

    page_bytes = 256

    def hashes(self, count: int) -> list[str]:
        return [f"{i:064x}" for i in range(count)]

    def data(self, count: int, start: int) -> list[bytes]:
        return [bytes([(start + i + j) % 251 for j in range(self.page_bytes)]) for i in range(count)]

    def rooms(self, count: int) -> list[list[bytearray]]:
        return [[bytearray(b"\xaa" * 100), bytearray(b"\xaa" * 156)] for _ in range(count)]

    def bytes_of(self, room: list[bytearray]) -> bytes:
        return b"".join(map(bytes, room))


KIT = _Kit()


def test_large_batches_are_cut_into_calls_of_128(kit: Any) -> None:
    backend = kit.Plain()
    session = kit.open(backend)
    hashes = kit.hashes(300)
    assert session.set(hashes, kit.sources(300)) == [Outcome.STORED] * 300
    rooms = kit.rooms(300)
    assert session.get(hashes, rooms) == [Outcome.HIT] * 300
    assert [kit.bytes_of(room) for room in rooms] == kit.data(300)
    assert session.query(hashes + kit.hashes(1, 900)).count == 300
    assert [(hook, len(keys)) for hook, keys in backend.calls] == [
        ("batch_set", 128),
        ("batch_set", 128),
        ("batch_set", 44),
        ("batch_get", 128),
        ("batch_get", 128),
        ("batch_get", 44),
        ("batch_exists", 128),
        ("batch_exists", 128),
        ("batch_exists", 45),
    ]


def test_a_query_says_why_its_run_ended(kit: Any) -> None:
    session, _ = kit.memory()
    session.set(kit.hashes(3), kit.sources(3))
    assert (session.query(kit.hashes(3)).count, session.query(kit.hashes(3)).reason) == (3, "")
    assert (session.query(kit.hashes(5)).count, session.query(kit.hashes(5)).reason) == (3, "miss")
    handle = session.submit_exists(kit.hashes(5))
    assert handle.result() == 3
    assert handle.reason == "miss"
    assert session.exists([]) == 0


def test_pages_carry_a_seal_and_the_namespace(kit: Any) -> None:
    session, store = kit.memory()
    session.set(kit.hashes(1), kit.sources(1))
    ((key, (data, _)),) = store.pages.items()
    assert key == f"{session.namespace}/{kit.hashes(1)[0]}.kv.l0-2h0-2"
    assert len(data) == 64 + kit.page_bytes
    assert data[64:] == kit.data(1)[0]


def test_without_seals_pages_are_bare_and_of_another_namespace(kit: Any) -> None:
    from hicache_core.storage import SessionSettings

    sealed, _ = kit.memory()
    session, store = kit.memory(settings=SessionSettings(seal=False))
    assert session.namespace != sealed.namespace
    session.set(kit.hashes(2), kit.sources(2))
    assert [data for data, _ in store.pages.values()] == kit.data(2)
    rooms = kit.rooms(2)
    assert session.get(kit.hashes(2), rooms) == [Outcome.HIT] * 2
    assert kit.bytes_of(rooms[1]) == kit.data(2)[1]


def test_another_identity_never_meets_the_pages(kit: Any) -> None:
    from hicache_core.storage.memory import CAPABILITIES, MemoryBackend

    session, store = kit.memory()
    session.set(kit.hashes(2), kit.sources(2))
    for change in (
        {"weights": "declared:other"},
        {"dtype": "bfloat16"},
        {"layout": "layer_first"},
        {"tenant": "other"},
        {"page_size": 32},
    ):
        other = kit.open(MemoryBackend(store, None), CAPABILITIES, identity=kit.identity.replace(**change))
        assert other.exists(kit.hashes(2)) == 0
        rooms = kit.rooms(2)
        assert other.get(kit.hashes(2), rooms) == [Outcome.MISS] * 2
        assert other.clear() == 0
    assert session.exists(kit.hashes(2)) == 2


def test_buffers_of_many_kinds_go_in_and_out(kit: Any) -> None:
    import numpy as np

    session, _ = kit.memory()
    array = np.arange(64, dtype=np.float32).reshape(4, 16)
    assert session.set(kit.hashes(1), [[array]]) == [Outcome.STORED]
    room = np.zeros((2, 32), np.float32)
    assert session.get(kit.hashes(1), [[room[:1], room[1:]]]) == [Outcome.HIT]
    assert room.tobytes() == array.tobytes()


@pytest.mark.parametrize(
    ("operation", "pages"),
    [
        ("set", [[b"x"]]),
        ("get", [[bytes(4)], [bytes(4)]]),
        ("get", [["text"], ["text"]]),
        ("set", [[memoryview(bytes(8))[::2]], [b"x"]]),
    ],
)
def test_what_cannot_be_lent_is_misuse(kit: Any, operation: str, pages: list[Any]) -> None:
    session, _ = kit.memory()
    with pytest.raises(MisuseError):
        getattr(session, operation)(kit.hashes(2), pages)
