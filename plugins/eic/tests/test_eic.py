"""The EIC client behind the contract, on a fake of the client: codes, lengths, what is refused and how it is told."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from hicache_eic import fake
from hicache_eic.fake_kit import kit

from hicache_core.errors import ConfigError, MissingDependencyError, OpenError
from hicache_core.namespace import Identity
from hicache_core.plugin.select import choose_backend, open_backend
from hicache_core.storage import open_session
from hicache_core.types import IoContext, OpenContext, Outcome

IDENTITY = Identity("m", "declared:w", "uint8", 4, "mha", 1, 1, 8)
KEYS = [f"{'0' * 32}/{n:064x}.kv.l0-1h0-1" for n in range(4)]


@pytest.fixture(autouse=True)
def vendor(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The fake in the place of the vendor's module."""
    monkeypatch.setitem(sys.modules, "eic", fake)
    return fake


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    return kit.throwaway(tmp_path)


def opened(options: dict[str, Any]) -> Any:
    return open_backend(choose_backend("eic", options), OpenContext("0" * 32))


def page(fill: bytes, nbytes: int = 96) -> list[memoryview]:
    return [memoryview(bytearray(fill * 64)), memoryview(bytearray(fill * nbytes))]


def test_an_object_that_is_not_ours_is_damage(options: dict[str, Any]) -> None:
    backend = opened(options)
    store = fake.Store(Path(options["endpoint"]) / "throwaway.db")
    store.put("", KEYS[0], b"?" * 500)
    assert backend.batch_get(KEYS[:1], [page(b"\0")], IoContext()) == [Outcome.CORRUPT]
    backend.close()


@pytest.mark.parametrize("call", ["mset", "mget", "mexist"])
def test_a_call_that_fails_as_a_whole_is_unavailable_and_no_miss(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def fails(*args: Any) -> Any:
        middle = (args[-1],) if call == "mget" else ()
        return fake.StatusCode.FAILED, *middle, fake._Outcome([])

    with open_session("eic", identity=IDENTITY, options=options) as session:
        session.set(["a" * 64], [[memoryview(bytearray(8))]])
        monkeypatch.setattr(fake.Client, call, lambda self, *args: fails(*args))
        if call == "mexist":
            answer = session.query(["a" * 64])
            assert (answer.count, answer.reason) == (0, "unavailable")
        elif call == "mset":
            assert session.set(["b" * 64], [[memoryview(bytearray(8))]]) == [Outcome.UNAVAILABLE]
        else:
            assert session.get(["a" * 64], [[memoryview(bytearray(8))]]) == [Outcome.UNAVAILABLE]


def test_status_codes_that_do_not_fit_the_keys_are_not_believed(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that answers a failed batch with too long a list must not shift the answers of the others."""
    too_many = fake.StatusCode.PARTIAL_FAILED, fake._Outcome([fake.StatusCode.SUCCESS] * 9)
    monkeypatch.setattr(fake.Client, "mexist", lambda self, keys, option: too_many)
    with open_session("eic", identity=IDENTITY, options=options) as session:
        assert session.query(["a" * 64, "b" * 64]).reason == "unavailable"


def test_more_keys_than_one_call_takes(options: dict[str, Any]) -> None:
    backend = opened(options)
    many = [f"{'0' * 32}/{n}" for n in range(3000)]
    for key in (many[0], many[2999]):
        backend.batch_set([key], [page(b"x")], IoContext())
    found = backend.batch_contains(many, IoContext())
    assert [index for index, there in enumerate(found) if there] == [0, 2999]
    backend.close()


def test_registered_memory_is_said_to_be(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int, bool]] = []
    inner = fake.Client.mset
    monkeypatch.setattr(
        fake.Client,
        "mset",
        lambda self, keys, vals, option: seen.extend(vals.items) or inner(self, keys, vals, option),
    )
    backend = opened(options | {"register_cuda_id": 0, "arenas": 2})
    assert backend.batch_set(KEYS, [page(b"x")] * 4, IoContext()) == [Outcome.STORED] * 4
    regions = backend._client._connection.registered
    assert len(regions) == 2
    for pointer, nbytes, registered in seen:
        assert registered
        assert any(start <= pointer and pointer + nbytes <= start + size for start, size, _ in regions)
    backend.close()


def test_an_instance_that_is_not_there_is_refused_with_the_code(tmp_path: Path) -> None:
    with pytest.raises(OpenError, match=r"init returned -2; check endpoint and instance_id"):
        opened({"endpoint": str(tmp_path / "nobody"), "instance_id": "kv"})


def test_without_the_client_its_source_is_named(monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]) -> None:
    monkeypatch.delitem(sys.modules, "eic")
    with pytest.raises(MissingDependencyError, match="your EIC provider hands out"):
        opened(options)


def test_a_page_fits_in_one_arena_of_the_bounce_memory(options: dict[str, Any]) -> None:
    choice = choose_backend("eic", options | {"bounce_size": "1MiB", "arenas": 3})
    assert choice.capabilities.max_page_bytes == 85 * 4096 - 16


@pytest.mark.parametrize(
    ("wrong", "said"), [({"endpoint": ""}, "endpoint"), ({"instance": "x"}, "instance_id"), ({"arenas": 0}, "arenas")]
)
def test_a_wrong_option_is_named(options: dict[str, Any], wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        choose_backend("eic", options | wrong)
