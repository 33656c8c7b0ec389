"""The SiMM client behind the contract, on a fake of the client: numbers, lengths, registered memory."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hicache_simm import fake
from hicache_simm.fake_kit import kit

from hicache_core.errors import ConfigError, MissingDependencyError, OpenError
from hicache_core.plugin.select import choose_backend, open_backend
from hicache_core.types import IoContext, OpenContext, Outcome

KEYS = [f"{'0' * 32}/{n:064x}.kv.l0-1h0-1" for n in range(4)]


@pytest.fixture(autouse=True)
def nothing_stays_registered() -> Iterator[None]:
    before = dict(fake.registered)
    yield
    assert fake.registered == before


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    return kit.throwaway(tmp_path)


def opened(options: dict[str, Any]) -> Any:
    return open_backend(choose_backend("simm", options), OpenContext("0" * 32))


def page(fill: bytes, nbytes: int = 96) -> list[memoryview]:
    return [memoryview(bytearray(fill * 64)), memoryview(bytearray(fill * nbytes))]


def test_flags_are_set_before_the_client_is_made(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake, "flags", {})
    monkeypatch.setenv("SICL_NET_DEVICES", "other")
    more = {"client_threads": 3, "log_file": "/dev/null", "net_devices": "mlx5_0"}
    opened(options | more).close()
    host, _, port = options["manager_address"].rpartition(":")
    assert fake.flags == {
        "cm_primary_node_ip": host,
        "cm_primary_node_port": port,
        "clnt_thread_pool_size": "3",
        "clnt_log_file": "/dev/null",
    }


def test_what_is_there_and_cannot_be_read_is_no_miss(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = opened(options)
    backend.batch_set(KEYS[:2], [page(b"x")] * 2, IoContext())
    monkeypatch.setattr(fake.Store, "get", lambda self, key, view: fake.ABORTED if key == KEYS[0] else view.nbytes)
    answers = backend.batch_get(KEYS[:2], [page(b"\0")] * 2, IoContext())
    assert answers == [Outcome.UNAVAILABLE, Outcome.HIT]
    assert backend.batch_get(KEYS[3:], [page(b"\0")], IoContext()) in ([Outcome.MISS], [Outcome.HIT])
    backend.close()


def test_a_page_that_is_refused_alone_is_rejected_alone(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, inner = opened(options), fake.Store.put
    monkeypatch.setattr(
        fake.Store, "put", lambda self, key, view: fake.ABORTED if key == KEYS[1] else inner(self, key, view)
    )
    answers = backend.batch_set(KEYS[:3], [page(b"x")] * 3, IoContext())
    assert answers == [Outcome.STORED, Outcome.REJECTED, Outcome.STORED]
    assert backend.batch_contains(KEYS[:3], IoContext()) == [True, False, True]
    backend.close()


def test_a_key_that_cannot_be_removed_is_told(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    backend = opened(options)
    backend.batch_set(KEYS[:1], [page(b"x")], IoContext())
    monkeypatch.setattr(fake.Store, "delete", lambda self, key: fake.ABORTED)
    assert backend.delete(KEYS[:2], IoContext()) == [Outcome.UNAVAILABLE, Outcome.MISS]
    backend.close()


def test_a_manager_that_is_not_reached_is_named(tmp_path: Path) -> None:
    kit.enter_process({})
    with pytest.raises(OpenError, match=r"manager at .*nobody:1 was not reached"):
        opened({"manager_address": f"{tmp_path}/nobody:1"})


def test_without_the_client_its_source_is_named(monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]) -> None:
    monkeypatch.delitem(sys.modules, "simm.kv")
    monkeypatch.delitem(sys.modules, "simm")
    with pytest.raises(MissingDependencyError, match=r"github.com/scitix/SiMM"):
        opened(options)


def test_a_page_fits_in_one_arena_of_the_bounce_memory(options: dict[str, Any]) -> None:
    choice = choose_backend("simm", options | {"bounce_size": "1MiB", "arenas": 3})
    assert choice.capabilities.max_page_bytes == 85 * 4096


@pytest.mark.parametrize(
    ("wrong", "said"), [({"manager_address": "host"}, "manager_address"), ({"manager": "x"}, "manager_address")]
)
def test_a_wrong_option_is_named(options: dict[str, Any], wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        choose_backend("simm", options | wrong)
