"""Plugin POSIX: every engine moves the same bytes, straight or by the bounce, and a bad page fails alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hicache_file.backdoor import FileBackDoor
from hicache_nixl import agents
from hicache_nixl.posix import Mover
from hicache_nixl.transfers import Job

from hicache_core.errors import MisuseError, OpenError, OptionError
from hicache_core.namespace import Identity
from hicache_core.pools.geometry import KVGeometry
from hicache_core.pools.host import make_host_pool
from hicache_core.storage import open_session
from hicache_core.storage.lent_memory import address_of
from hicache_core.storage.seals import aligned_memory
from hicache_core.types import IoContext, Outcome, Page

ENGINES = ("auto", "posix_aio", "io_uring", "linux_aio", "default")
SEAL, REGION = 4096, 8192
"""Bytes: multiples of what O_DIRECT asks for."""


def page(fill: int, *sizes: int) -> Page:
    """Aligned buffers of these sizes, filled."""
    buffers = []
    for size in sizes or (SEAL, REGION, REGION):
        buffer = aligned_memory(size)
        np.frombuffer(buffer, np.uint8)[:] = fill
        buffers.append(buffer)
    return buffers


def same(one: Page, other: Page) -> bool:
    return b"".join(one) == b"".join(other)


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_moves_the_same_bytes(
    opened: Callable[..., Any], tmp_path: Path, keys: list[str], engine: str, direct: bool
) -> None:
    store = opened(root=str(tmp_path / "kv"), engine=engine, direct=direct)
    pages = [page(10 + index) for index in range(8)]
    assert store.batch_set(keys, pages, IoContext()) == [Outcome.STORED] * 8
    raw = FileBackDoor(tmp_path / "kv")
    assert [raw.raw_get(key) for key in keys] == [b"".join(one) for one in pages]
    into = [page(0) for _ in keys]
    assert store.batch_get(keys, into, IoContext()) == [Outcome.HIT] * 8
    assert all(map(same, into, pages))
    counted = store.stats()
    assert (counted.by_nixl, counted.by_system_calls) == (16, 0)


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("sizes", [(64, 1000), (4096, 100), (1,), (64, 3, 5, 7), (4096, 4096 * 3 + 1)])
def test_lengths_that_direct_cannot_take_go_all_the_same(
    opened: Callable[..., Any], tmp_path: Path, keys: list[str], direct: bool, sizes: tuple[int, ...]
) -> None:
    store = opened(root=str(tmp_path / "kv"), direct=direct)
    pages = [page(10 + index, *sizes) for index in range(3)]
    assert store.batch_set(keys[:3], pages, IoContext()) == [Outcome.STORED] * 3
    into = [page(0, *sizes) for _ in range(3)]
    assert store.batch_get(keys[:3], into, IoContext()) == [Outcome.HIT] * 3
    assert all(map(same, into, pages))
    assert store.stats().by_system_calls == 0


@pytest.mark.parametrize("layout", ["page_first", "layer_first"])
def test_a_registered_pool_goes_straight_and_other_memory_by_the_bounce(
    opened: Callable[..., Any], tmp_path: Path, keys: list[str], layout: str
) -> None:
    pool = make_host_pool(KVGeometry("mha", 3, 2, 128, page_size=16), layout, 8, reserve=0)
    store = opened(root=str(tmp_path / "kv"))
    slots = np.array([5, 1, 7], np.int64)
    pages = [list(one) for one in pool.pages(slots)]
    for index, one in enumerate(pages):
        for buffer in one:
            np.frombuffer(buffer, np.uint8)[:] = 50 + index
    store.batch_set(keys[:3], pages, IoContext())
    assert store.stats().bounced == 3
    store.register_host_pool(pool)
    into = [list(one) for one in pool.pages(np.array([0, 2, 3], np.int64))]
    assert store.batch_get(keys[:3], into, IoContext()) == [Outcome.HIT] * 3
    assert all(map(same, into, pages))
    assert store.stats().bounced == 3
    with pytest.raises(MisuseError, match="registered with this NIXL store already"):
        store.register_host_pool(pool)
    store.unregister_host_pool(pool)
    with pytest.raises(MisuseError, match="not registered"):
        store.unregister_host_pool(pool)
    del pages, into, one, buffer
    store.close()
    pool.close()


def test_more_pages_than_files_and_bounce_allow_at_once(opened: Callable[..., Any], tmp_path: Path) -> None:
    store = opened(root=str(tmp_path / "kv"), bounce_size=1 << 20, agents=1)
    many = [f"{'0' * 32}/{number}" for number in range(300)]
    pages = [page(number % 250 + 1, 64, 20_000) for number in range(300)]
    assert store.batch_set(many, pages, IoContext()) == [Outcome.STORED] * 300
    into = [page(0, 64, 20_000) for _ in many]
    assert store.batch_get(many, into, IoContext()) == [Outcome.HIT] * 300
    assert all(map(same, into, pages))


def test_a_page_larger_than_the_bounce_goes_by_system_calls(
    opened: Callable[..., Any], tmp_path: Path, keys: list[str]
) -> None:
    store = opened(root=str(tmp_path / "kv"), bounce_size=1 << 20, agents=4)
    large = page(7, 64, 1 << 20)
    assert store.batch_set(keys[:2], [large, page(8, 64, 64)], IoContext()) == [Outcome.STORED] * 2
    into = [page(0, 64, 1 << 20), page(0, 64, 64)]
    assert store.batch_get(keys[:2], into, IoContext()) == [Outcome.HIT] * 2
    assert same(into[0], large)


def test_where_io_uring_is_forbidden_posix_aio_is_taken(
    opened: Callable[..., Any], tmp_path: Path, keys: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    inner, asked = agents.Agent.__init__, []

    def forbidden(self: agents.Agent, name: str, plugin: str, parameters: Any) -> None:
        asked.append(dict(parameters))
        if "use_uring" in parameters:
            raise PermissionError("io_uring_setup")
        inner(self, name, plugin, parameters)

    monkeypatch.setattr(agents.Agent, "__init__", forbidden)
    store = opened(root=str(tmp_path / "kv"), agents=1)
    assert asked == [{"use_uring": "true"}, {"use_posix_aio": "true"}]
    assert store.batch_set(keys[:1], [page(1)], IoContext()) == [Outcome.STORED]
    with pytest.raises(OpenError, match="io_uring_setup"):
        opened(root=str(tmp_path / "kv"), agents=1, engine="io_uring")


def test_a_session_registers_its_seals_and_pages_of_a_pool_go_straight(tmp_path: Path) -> None:
    pool = make_host_pool(KVGeometry("mha", 3, 2, 16, page_size=4), "page_first", 8, reserve=0)
    identity = Identity("m", "declared:w", "float16", 4, "mha", 3, 2, 16)
    hashes, slots = [f"{number:064x}" for number in range(4)], np.arange(4)
    with open_session("nixl", identity=identity, options={"root": str(tmp_path / "kv")}) as session:
        session.register_host_pool(pool)
        assert session.set_v1(hashes, slots) == [Outcome.STORED] * 4
        assert session.get_v1(hashes, slots + 4) == [Outcome.HIT] * 4
        assert (session.stats().by_nixl, session.stats().bounced) == (8, 0)


def test_a_page_cut_short_and_a_missing_one_fail_alone(
    opened: Callable[..., Any], tmp_path: Path, keys: list[str]
) -> None:
    store = opened(root=str(tmp_path / "kv"))
    pages = [page(10 + index) for index in range(4)]
    store.batch_set(keys[:4], pages, IoContext())
    raw = FileBackDoor(tmp_path / "kv")
    raw.raw_set(keys[1], b"".join(pages[1])[:-1])
    raw.raw_delete(keys[2])
    into = [page(0) for _ in range(4)]
    assert store.batch_get(keys[:4], into, IoContext()) == [
        Outcome.HIT,
        Outcome.CORRUPT,
        Outcome.MISS,
        Outcome.HIT,
    ]
    assert same(into[0], pages[0])
    assert same(into[3], pages[3])


def test_a_file_that_is_cut_while_it_is_read_fails_alone(
    opened: Callable[..., Any], tmp_path: Path, keys: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """NIXL gives a whole transfer up for one file that ends too soon."""
    store = opened(root=str(tmp_path / "kv"))
    pages = [page(10 + index) for index in range(3)]
    store.batch_set(keys[:3], pages, IoContext())
    inner = Mover.move

    def cut(jobs: Iterable[Job]) -> Iterator[Job]:
        for job in jobs:
            if job.position == 1:
                os.truncate(f"/proc/self/fd/{job.fd}", 100)
            yield job

    monkeypatch.setattr(Mover, "move", lambda self, way, jobs, *rest: inner(self, way, cut(jobs), *rest))
    into = [page(0) for _ in range(3)]
    assert store.batch_get(keys[:3], into, IoContext()) == [Outcome.HIT, Outcome.CORRUPT, Outcome.HIT]
    assert same(into[0], pages[0])
    assert same(into[2], pages[2])
    assert store.stats().by_system_calls == 3


def test_a_transfer_that_fails_is_done_by_system_calls(
    opened: Callable[..., Any], tmp_path: Path, keys: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(root=str(tmp_path / "kv"))

    def fails(*args: Any) -> None:
        raise agents.NixlError("the card is on fire")

    monkeypatch.setattr(agents.Agent, "begin", fails)
    pages = [page(3), page(4)]
    assert store.batch_set(keys[:2], pages, IoContext()) == [Outcome.STORED] * 2
    into = [page(0), page(0)]
    assert store.batch_get(keys[:2], into, IoContext()) == [Outcome.HIT] * 2
    assert all(map(same, into, pages))


def test_no_agent_in_time_is_a_timeout_and_leaves_nothing(
    opened: Callable[..., Any], tmp_path: Path, keys: list[str]
) -> None:
    store = opened(root=str(tmp_path / "kv"), agents=1)
    store.batch_set(keys[:1], [page(1)], IoContext())
    with store._agents.one(None):
        late = IoContext(deadline=0.0)
        assert store.batch_get(keys[:1], [page(0)], late) == [Outcome.TIMEOUT]
        assert store.batch_set(keys[1:2], [page(0)], late) == [Outcome.TIMEOUT]
    assert store.batch_exists(keys[1:2], IoContext()) == 0
    assert not list((tmp_path / "kv/+hicache/writers").glob("*/[0-9]*"))


def test_calls_leave_no_descriptor(opened: Callable[..., Any], tmp_path: Path, keys: list[str]) -> None:
    store = opened(root=str(tmp_path / "kv"))
    store.batch_set(keys, [page(1) for _ in keys], IoContext())
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        store.batch_get(keys, [page(0) for _ in keys], IoContext())
        store.batch_set(keys, [page(1) for _ in keys], IoContext(replace=True))
    assert len(os.listdir("/proc/self/fd")) == before


def test_files_are_those_of_the_file_backend(opened: Callable[..., Any], tmp_path: Path, keys: list[str]) -> None:
    from hicache_core.plugin.select import choose_backend, open_backend
    from hicache_core.types import OpenContext

    store = opened(root=str(tmp_path / "kv"))
    store.batch_set(keys[:1], [page(9)], IoContext())
    plain: Any = open_backend(choose_backend("file", {"root": str(tmp_path / "kv")}), OpenContext("0" * 32))
    into = page(0)
    assert plain.batch_get(keys[:1], [into], IoContext()) == [Outcome.HIT]
    assert same(into, page(9))
    plain.close()


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({}, OptionError, "needs option root"),
        ({"plugin": "OBJ"}, OptionError, "needs option bucket"),
        ({"root": "/proc/nowhere/kv"}, OpenError, "proc/nowhere"),
        ({"plugin": "GDS", "root": "x"}, OptionError, "plugin"),
        ({"root": "x", "engin": "io_uring"}, OptionError, "engine"),
    ],
)
def test_what_cannot_be_is_refused_when_it_is_opened(
    opened: Callable[..., Any], options: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        opened(**options)


def test_memory_may_be_taken_back_after_the_agents_have_ended(opened: Callable[..., Any], tmp_path: Path) -> None:
    """Another thread may be about to, when the store is closed."""
    store = opened(root=str(tmp_path / "kv"), agents=1)
    memory = aligned_memory(4096)
    extent = address_of(memory), 4096
    with store._agents.one(None) as agent:
        agent.register(extent)
    agent.close()
    assert agent._memory == {}
    agent.unregister(extent)
