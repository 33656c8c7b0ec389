"""Page transforms: what is stored is encoded and sealed, what is read is verified and decoded."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hicache_conformance.xor import Xor

from hicache_core.errors import ConfigError
from hicache_core.namespace import TransformIdentity
from hicache_core.storage import SessionSettings
from hicache_core.types import Capabilities, IoContext, Outcome, Page, PoolName

VARIABLE = Capabilities(variable_length=True, replace=True)


class Deflate(Xor):
    """Changes lengths."""

    changes_length = True

    def __init__(self) -> None:
        super().__init__(in_place=False)
        self.identity = TransformIdentity("deflate", "1", "level=6")

    def max_size(self, nbytes: int) -> int:
        return nbytes + 64

    def encode(self, ctx: IoContext, keys: Sequence[str], pages: Sequence[Page]) -> list[Page]:
        return [[memoryview(zlib.compress(b"".join(page)))] for page in pages]

    def decode(
        self,
        ctx: IoContext,
        keys: Sequence[str],
        src: Sequence[Page],
        lengths: list[int],
        dst: Sequence[Page],
        outcomes: list[Outcome],
    ) -> list[Outcome]:
        for i, outcome in enumerate(outcomes):
            if outcome:
                plain = zlib.decompress(src[i][0][: lengths[i]])
                lengths[i] = len(plain)
                for buffer in dst[i]:
                    buffer[: len(plain)] = plain[: len(buffer)]
                    plain = plain[len(buffer) :]
        return outcomes


def variable(kit: Any) -> Any:
    from hicache_core.storage.memory import MemoryBackend, MemoryStore

    store = MemoryStore()
    return MemoryBackend(store, None), store


@pytest.mark.parametrize(
    "transforms",
    [
        [Xor()],
        [Xor(in_place=False)],
        [Xor(1), Xor(2)],
        [Xor(1), Xor(2, in_place=False), Xor(4)],
        [Deflate()],
        [Deflate(), Xor()],
        [Xor(), Deflate()],
        [Deflate(), Deflate()],
    ],
)
@pytest.mark.parametrize("lent", [False, True])
def test_pages_come_back_and_plaintext_is_not_stored(kit: Any, transforms: list[Any], lent: bool) -> None:
    backend, store = variable(kit)
    settings = SessionSettings(lent_pools=lent)
    session = kit.open(backend, VARIABLE, transforms=transforms, settings=settings)
    originals = [[bytearray(part) for part in page] for page in kit.sources(3)]
    assert session.set(kit.hashes(3), originals) == [Outcome.STORED] * 3
    assert [kit.bytes_of(page) for page in originals] == kit.data(3)  # the live page was not touched
    if any(type(transform) is Xor for transform in transforms):  # deflate stores incompressible bytes as they are
        assert not any(plain[:32] in data for plain in kit.data(3) for data, _ in store.pages.values())
    rooms = kit.rooms(4)
    assert session.get(kit.hashes(4), rooms) == [Outcome.HIT] * 3 + [Outcome.MISS]
    assert [kit.bytes_of(room) for room in rooms[:3]] == kit.data(3)


@pytest.mark.parametrize("transforms", [[Xor()], [Xor(in_place=False)], [Deflate()]])
def test_pages_of_pools_go_through_transforms(kit: Any, transforms: list[Any]) -> None:
    backend, _ = variable(kit)
    session = kit.open(backend, VARIABLE, transforms=transforms)
    pool = kit.HostPool(PoolName.KV, 6)
    session.register_host_pool(pool)
    for slot, data in enumerate(kit.data(3)):
        pool.fill(slot, data)
    assert session.set_v1(kit.hashes(3), np.arange(3)) == [Outcome.STORED] * 3
    assert session.get_v1(kit.hashes(3), np.array([5, 4, 3])) == [Outcome.HIT] * 3
    assert [pool.read(slot) for slot in (5, 4, 3)] == kit.data(3)


@pytest.mark.parametrize("transforms", [[Xor(in_place=False)], [Deflate()], [Deflate(), Xor(in_place=False)]])
def test_a_damaged_encoded_page_is_read_again_and_poisoned(kit: Any, transforms: list[Any], spoil: Any) -> None:
    backend, store = variable(kit)
    session = kit.open(backend, VARIABLE, transforms=transforms)
    session.set(kit.hashes(3), kit.sources(3))
    spoil(store.pages, f"{session.namespace}/{kit.hashes(3)[1]}.kv.l0-2h0-2")
    rooms = kit.rooms(3)
    assert session.get(kit.hashes(3), rooms) == [Outcome.HIT, Outcome.CORRUPT, Outcome.HIT]
    assert [kit.bytes_of(rooms[i]) for i in (0, 2)] == [kit.data(3)[0], kit.data(3)[2]]
    assert session.ledger.count("retries") == 1
    assert session.query(kit.hashes(3)).reason == "poisoned"
    assert session.set(kit.hashes(3), kit.sources(3))[1] is Outcome.STORED
    assert session.get(kit.hashes(3), kit.rooms(3)) == [Outcome.HIT] * 3


def test_another_key_is_another_namespace(kit: Any) -> None:
    plain = kit.open(kit.Plain())
    spaces = {plain.namespace}
    for transforms in ([Xor(1)], [Xor(2)], [Xor(1), Xor(2)], [Xor(2), Xor(1)]):
        spaces.add(kit.open(kit.Plain(), transforms=transforms).namespace)
    assert len(spaces) == 5


def test_a_transform_that_changes_lengths_needs_a_store_that_can(kit: Any) -> None:
    with pytest.raises(ConfigError, match=r"'deflate' changes the length.*variable_length"):
        kit.open(kit.Plain(), transforms=[Deflate()])


class Shortens(Deflate):
    """Decodes to another length than the page's."""

    def decode(self, *args: Any) -> list[Outcome]:
        outcomes = super().decode(*args)
        args[3][0] -= 1
        return outcomes


class Refuses(Xor):
    """Cannot decode the second page."""

    def decode(self, *args: Any) -> list[Outcome]:
        return [outcome if i != 1 else Outcome.CORRUPT for i, outcome in enumerate(super().decode(*args))]


class Fails(Xor):
    def decode(self, *args: Any) -> list[Outcome]:
        raise ValueError("no such key")


class FailsToEncode(Xor):
    def encode(self, *args: Any) -> list[Page]:
        raise ValueError("no such key")


class Loses(Xor):
    def encode(self, *args: Any) -> list[Page]:
        return super().encode(*args)[1:]


def test_what_a_transform_does_wrong_is_an_outcome(kit: Any) -> None:
    for transform, expected in (
        (Shortens(), [Outcome.CORRUPT, Outcome.HIT]),
        (Refuses(), [Outcome.HIT, Outcome.CORRUPT]),
        (Fails(), [Outcome.UNAVAILABLE] * 2),
    ):
        backend, _ = variable(kit)
        session = kit.open(backend, VARIABLE, transforms=[transform])
        assert session.set(kit.hashes(2), kit.sources(2)) == [Outcome.STORED] * 2
        if isinstance(transform, Refuses):  # the second read has one page, at index 0
            assert session.get(kit.hashes(2), kit.rooms(2)) in (expected, [Outcome.HIT] * 2)
        else:
            assert session.get(kit.hashes(2), kit.rooms(2)) == expected
    assert session.ledger.as_dict()["exceptions"] == {"transform xor": 1}
    assert session.status().breakers["read"].state == "closed"  # the store is not to blame
    for transform in (FailsToEncode(), Loses()):
        backend, store = variable(kit)
        session = kit.open(backend, VARIABLE, transforms=[transform])
        assert session.set(kit.hashes(2), kit.sources(2)) == [Outcome.UNAVAILABLE] * 2
        assert not store.pages


def test_staging_is_bounded(kit: Any) -> None:
    backend, _ = variable(kit)
    settings = SessionSettings(stage_bytes=1024, lent_pools=True)
    session = kit.open(backend, VARIABLE, transforms=[Deflate()], settings=settings)
    assert session.set(kit.hashes(40), kit.sources(40)) == [Outcome.STORED] * 40
    rooms = kit.rooms(40)
    assert session.get(kit.hashes(40), rooms) == [Outcome.HIT] * 40
    assert [kit.bytes_of(room) for room in rooms] == kit.data(40)
    assert 0 < session.status().staged_bytes <= 1024 * 2  # at most one block per worker came into use
