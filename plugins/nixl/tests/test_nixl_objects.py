"""Plugin OBJ on a real S3 server: lengths, missing neighbours, refused openings."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hicache_nixl import objects
from hicache_nixl.backdoor import kit
from hicache_nixl.objects import ObjectClient

from hicache_core.errors import OpenError, OptionError
from hicache_core.namespace import Identity
from hicache_core.plugin.select import choose_backend
from hicache_core.storage import open_session
from hicache_core.types import IoContext, Outcome

IDENTITY = Identity("m", "declared:w", "uint8", 4, "mha", 1, 1, 8)


def page(fill: int, nbytes: int = 5000) -> list[memoryview]:
    return [memoryview(bytearray([fill] * 64)), memoryview(bytearray([fill] * nbytes))]


def test_pages_come_back_and_a_missing_one_spares_its_neighbours(
    opened: Callable[..., Any], bucket: dict[str, Any], keys: list[str]
) -> None:
    store = opened(**bucket)
    pages = [page(index + 1) for index in range(3)]
    assert store.batch_set([keys[0], keys[2], keys[4]], pages, IoContext()) == [Outcome.STORED] * 3
    into = [page(0) for _ in range(5)]
    answers = store.batch_get(keys[:5], into, IoContext())
    assert answers == [Outcome.HIT, Outcome.MISS, Outcome.HIT, Outcome.MISS, Outcome.HIT]
    assert [into[0], into[2], into[4]] == pages
    assert store.batch_exists(keys, IoContext()) == 1
    assert store.batch_contains(keys[:5], IoContext()) == [True, False, True, False, True]


def test_another_length_is_damage_and_spares_its_neighbours(
    opened: Callable[..., Any], bucket: dict[str, Any], keys: list[str]
) -> None:
    store = opened(**bucket)
    store.batch_set(keys[:3], [page(1), page(2, 4000), page(3, 6000)], IoContext())
    into = [page(0) for _ in range(3)]
    answers = store.batch_get(keys[:3], into, IoContext())
    assert answers == [Outcome.HIT, Outcome.CORRUPT, Outcome.CORRUPT]
    assert into[0] == page(1)


def test_the_first_writer_stays_unless_told_to_be_replaced(
    opened: Callable[..., Any], bucket: dict[str, Any], keys: list[str]
) -> None:
    store = opened(**bucket)
    assert store.batch_set(keys[:1], [page(1)], IoContext()) == [Outcome.STORED]
    assert store.batch_set(keys[:1], [page(2)], IoContext()) == [Outcome.EXISTS]
    into = page(0)
    store.batch_get(keys[:1], [into], IoContext())
    assert into == page(1)
    assert store.batch_set(keys[:1], [page(2)], IoContext(replace=True)) == [Outcome.STORED]
    store.batch_get(keys[:1], [into], IoContext())
    assert into == page(2)


def test_a_flipped_bit_is_a_miss_that_the_next_write_heals(bucket: dict[str, Any]) -> None:
    data = np.arange(4000, dtype=np.uint16).view(np.uint8)
    with open_session("nixl", identity=IDENTITY, options=bucket) as session:
        assert session.set(["a" * 64], [[memoryview(data)]]) == [Outcome.STORED]
        door = kit.back_door(object(), choose_backend("nixl", bucket).options)
        [key] = door.raw_list()
        raw = bytearray(door.raw_get(key) or b"")
        raw[500] ^= 1
        door.raw_set(key, bytes(raw))
        into = np.zeros_like(data)
        assert session.get(["a" * 64], [[memoryview(into)]]) == [Outcome.CORRUPT]
        assert session.set(["a" * 64], [[memoryview(data)]]) == [Outcome.STORED]
        assert session.get(["a" * 64], [[memoryview(into)]]) == [Outcome.HIT]
        assert (into == data).all()


def test_a_batch_that_fails_is_tried_page_by_page(
    opened: Callable[..., Any], bucket: dict[str, Any], keys: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, inner = opened(**bucket), ObjectClient._moved

    def picky(self: ObjectClient, agent: Any, operation: str, some: Any, objects: Any) -> bool:
        return keys[1] not in some and inner(self, agent, operation, some, objects)

    monkeypatch.setattr(ObjectClient, "_moved", picky)
    answers = store.batch_set(keys[:3], [page(1), page(2), page(3)], IoContext())
    assert answers == [Outcome.STORED, Outcome.UNAVAILABLE, Outcome.STORED]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"secret_access_key": "wrong"}, "took no object: check"),
        ({"endpoint": "http://127.0.0.1:9"}, "no S3 server answers at endpoint http://127.0.0.1:9"),
        ({"endpoint": "http://127.0.0.1:port"}, "check the address"),
    ],
)
def test_what_is_wrong_is_said_when_it_is_opened(
    opened: Callable[..., Any], bucket: dict[str, Any], wrong: dict[str, Any], said: str
) -> None:
    with pytest.raises(OpenError, match=said) as refused:
        opened(**(bucket | wrong))
    assert bucket["secret_access_key"] not in str(refused.value)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_server_that_takes_the_connection_and_says_nothing_is_refused(
    opened: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    """NIXL's own client would wait for it for minutes."""
    monkeypatch.setattr(objects, "ANSWER_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        endpoint = f"{scheme}://127.0.0.1:{mute.getsockname()[1]}"
        with pytest.raises(OpenError, match="timed out; check"):
            opened(plugin="OBJ", bucket="b", endpoint=endpoint, access_key_id="a", secret_access_key="b")


def test_without_credentials_the_options_are_named(
    opened: Callable[..., Any], bucket: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    with pytest.raises(OptionError, match="access_key_id and secret_access_key"):
        opened(**(bucket | {"access_key_id": None}))
