"""Opening, closing, forking: nothing is left behind, and nothing is used after its end."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from hicache_core.errors import ConfigError, HookError, MisuseError, OpenError, StorageError, UnknownNameError
from hicache_core.plugin.spec import hookimpl
from hicache_core.storage import SessionSettings, open_session
from hicache_core.types import Capabilities, Outcome, PoolName


def threads_of(prefix: str) -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(prefix)]


def test_close_leaves_no_thread_and_no_descriptor(kit: Any) -> None:
    before = len(os.listdir("/proc/self/fd"))
    session, _ = kit.memory()
    session.set(kit.hashes(3), kit.sources(3))
    session.submit_get(kit.hashes(3), kit.rooms(3)).result()
    session.stats()
    assert threads_of("hicache-test")
    assert session.close().clean
    assert threads_of("hicache-test") == []
    assert len(os.listdir("/proc/self/fd")) == before


def test_an_idle_session_has_no_threads(kit: Any) -> None:
    session = kit.open(kit.Plain())
    assert threads_of("hicache-test") == []
    assert session.status().threads == 0


def test_close_is_idempotent_and_calls_afterwards_are_misuse(kit: Any) -> None:
    backend = kit.Plain()
    session = kit.open(backend)
    pool = kit.HostPool(PoolName.KV, 1)
    assert session.close() is session.close()
    assert backend.closed == 1
    uses: list[Callable[[], object]] = [
        lambda: session.exists(kit.hashes(1)),
        lambda: session.query(kit.hashes(1)),
        lambda: session.submit_exists([]),
        lambda: session.contains(kit.hashes(1)),
        lambda: session.exists_v2(kit.hashes(1), []),
        lambda: session.get(kit.hashes(1), kit.rooms(1)),
        lambda: session.set(kit.hashes(1), kit.sources(1)),
        lambda: session.get_v1(kit.hashes(1), np.zeros(1, np.int64)),
        lambda: session.set_v1(kit.hashes(1), np.zeros(1, np.int64)),
        lambda: session.get_v2([]),
        lambda: session.set_v2([]),
        lambda: session.delete(kit.hashes(1)),
        session.clear,
        session.scan,
        session.stats,
        lambda: session.register_host_pool(pool),
        lambda: session.unregister_host_pool(pool),
        lambda: session.allocate_host_memory(1, 1),
    ]
    for use in uses:
        with pytest.raises(MisuseError, match="closed"):
            use()
    assert session.status().closed
    assert not session.healthy()


def test_close_cancels_what_is_queued_and_waits_for_what_runs(kit: Any) -> None:
    backend = kit.Stalling("batch_get")
    session = kit.open(backend, settings=SessionSettings(read_workers=1))
    session.set(kit.hashes(1), kit.sources(1))
    running = session.submit_get(kit.hashes(1), kit.rooms(1))
    assert backend.entered.acquire(timeout=kit.bound)
    queued = session.submit_get(kit.hashes(1), kit.rooms(1))
    reports: list[Any] = []
    closer = threading.Thread(target=lambda: reports.append(session.close(kit.bound)))
    closer.start()
    assert queued.result() == [Outcome.CANCELLED]
    assert queued.returned.is_set()
    backend.release.set()
    closer.join(kit.bound)
    assert running.result() == [Outcome.HIT]
    assert reports[0].clean
    assert backend.closed == 1


def test_close_reports_what_never_returned(kit: Any) -> None:
    backend = kit.Stalling("batch_get")
    session = kit.open(backend)
    handle = session.submit_get(kit.hashes(1), kit.rooms(1))
    assert backend.entered.acquire(timeout=kit.bound)
    report = session.close(2.0)
    assert report.abandoned == 1
    assert handle.result() == [Outcome.TIMEOUT]
    assert not handle.returned.is_set()
    assert backend.closed == 1  # it is closed all the same, which may let the call go
    kit.opened.remove(session)
    backend.release.set()
    assert handle.returned.wait(kit.bound)


def test_a_store_whose_close_hangs_does_not_hang_the_caller(kit: Any) -> None:
    gate = threading.Event()
    kit.releases.append(gate)

    class Hangs(kit.Plain):  # type: ignore[name-defined, misc]
        @hookimpl
        def close(self) -> None:
            assert gate.wait(kit.bound)

    session = kit.open(Hangs())
    report = session.close(0.05)
    kit.opened.remove(session)
    assert report.abandoned == 1
    assert "close did not return" in report.errors[0]
    gate.set()
    for thread in [t for t in threading.enumerate() if t.name.startswith("hicache-test")]:
        thread.join(kit.bound)
    assert threads_of("hicache-test") == []


def test_memory_is_registered_once_and_given_back(kit: Any) -> None:
    class Registers(kit.Plain):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.regions: list[memoryview] = []
            self.views: list[Any] = []
            self.outside = 0

        @hookimpl
        def register_region(self, buffer: memoryview) -> None:
            self.regions.append(buffer)

        @hookimpl
        def unregister_region(self, buffer: memoryview) -> None:
            self.regions.remove(buffer)

        @hookimpl
        def register_host_pool(self, view: Any) -> None:
            self.views.append(view)

        @hookimpl
        def unregister_host_pool(self, view: Any) -> None:
            self.views.remove(view)

        @hookimpl
        def batch_set(self, keys: Any, pages: Any, ctx: Any) -> list[Outcome]:
            self.outside += sum(not self.registered(page[0]) for page in pages)
            return kit.Plain.batch_set(self, keys, pages, ctx)  # type: ignore[no-any-return]

        def registered(self, buffer: memoryview) -> bool:
            at = np.frombuffer(buffer, np.uint8).ctypes.data
            for region in self.regions:
                start = np.frombuffer(region, np.uint8).ctypes.data
                if start <= at and at + buffer.nbytes <= start + region.nbytes:
                    return True
            return False

    backend = Registers()
    session = kit.open(backend, Capabilities(registration="region", alignment=512))
    assert len(backend.regions) == 2  # one ring per direction
    pool = kit.HostPool(PoolName.KV, 2)
    session.register_host_pool(pool)
    session.set_v1(kit.hashes(2), np.arange(2))
    session.set(kit.hashes(2, 5), kit.sources(2))
    assert backend.outside == 0
    assert all(np.frombuffer(region, np.uint8).ctypes.data % 512 == 0 for region in backend.regions)
    assert {len(data) for data in backend.pages.values()} == {512 + kit.page_bytes}  # the seal takes its stride
    session.close()
    assert backend.regions == []
    assert backend.views == []


def test_seals_are_given_back(kit: Any) -> None:
    backend = kit.Stalling("batch_get")
    session = kit.open(backend)
    session.set(kit.hashes(1), kit.sources(1))
    handle = session.submit_get(kit.hashes(1), kit.rooms(1))
    assert backend.entered.acquire(timeout=kit.bound)
    handle.abandon()
    assert sum(ring.borrowed for ring in session._parts.rings) == 1  # until the call has really returned
    backend.release.set()
    assert handle.returned.wait(kit.bound)
    assert sum(ring.borrowed for ring in session._parts.rings) == 0


def test_pages_are_let_go_of(kit: Any) -> None:
    class Room(bytearray):
        """A bytearray that can be watched."""

    session, _ = kit.memory()
    session.set(kit.hashes(1), kit.sources(1))
    room = Room(kit.page_bytes)
    gone = weakref.ref(room)
    assert session.get(kit.hashes(1), [[room]]) == [Outcome.HIT]
    assert session.submit_get(kit.hashes(1), [[room]]).result() == [Outcome.HIT]
    del room
    session.exists(kit.hashes(1))  # the workers have gone on
    gc.collect()
    assert gone() is None


def test_a_forked_process_may_not_use_the_session(kit: Any) -> None:
    session, _ = kit.memory()
    session._parts.pid += 1  # what a fork looks like from within, without forking a process full of threads
    try:
        for use in (lambda: session.exists(kit.hashes(1)), session.close, session.stats):
            with pytest.raises(MisuseError, match="forked"):
                use()
    finally:
        session._parts.pid -= 1
    assert session.exists(kit.hashes(1)) == 0


def test_what_cannot_be_opened_says_why(kit: Any) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'memory'"):
        open_session("memroy", identity=kit.identity)
    with pytest.raises(ConfigError, match="tenant"):
        kit.open(kit.Plain(), identity=kit.identity.replace(tenant="a"), settings=SessionSettings(tenant="b"))
    with pytest.raises(HookError, match="batch_set"):
        kit.open(type("Lacks", (), {"close": hookimpl(lambda self: None)})())
    with pytest.raises(ValueError, match="timeout"):
        SessionSettings(timeout=0)


def test_a_store_that_refuses_to_register_memory_is_not_opened(kit: Any) -> None:
    class Refuses(kit.Plain):  # type: ignore[name-defined, misc]
        @hookimpl
        def register_region(self, buffer: memoryview) -> None:
            raise OSError("memlock limit")

    backend = Refuses()
    with pytest.raises(OpenError, match="memlock limit"):
        kit.open(backend, Capabilities(registration="region"))
    assert backend.closed == 1


def test_a_backend_may_narrow_its_capabilities_when_opened(kit: Any) -> None:
    backend = kit.Plain()
    backend.capabilities = Capabilities(delete="none")
    session = kit.open(backend, Capabilities(delete="immediate", replace=True))
    assert session.capabilities.delete == "none"
    assert not session.capabilities.replace


def test_host_memory_of_the_store(kit: Any) -> None:
    class Allocates(kit.Plain):  # type: ignore[name-defined, misc]
        @hookimpl
        def allocate_host_memory(self, nbytes: int, alignment: int) -> bytearray:
            return bytearray(nbytes)

    assert kit.open(kit.Plain()).allocate_host_memory(4096, 64) is None
    memory = kit.open(Allocates()).allocate_host_memory(4096, 64)
    assert memory is not None
    assert (memory.nbytes, memory.format, memory.readonly) == (4096, "B", False)


def test_the_status_names_what_is_wrong(kit: Any) -> None:
    class Sick(kit.Plain):  # type: ignore[name-defined, misc]
        @hookimpl
        def batch_get(self) -> list[Outcome]:
            raise ConnectionError("no route")

    session = kit.open(Sick())
    assert session.healthy()
    for _ in range(5):
        session.get(kit.hashes(1), kit.rooms(1))
    status = session.status()
    assert not status.healthy
    assert status.problems == ["read: breaker open: 5 failures in a row, last: ConnectionError: no route"]
    assert status.recent_errors[-1] == "batch_get: ConnectionError: no route"


def test_an_admin_call_that_hangs_does_not_keep_the_store_open(kit: Any) -> None:
    gate, entered = threading.Event(), threading.Event()
    kit.releases.append(gate)

    class Hangs(kit.Plain):  # type: ignore[name-defined, misc]
        @hookimpl
        def stats(self) -> None:
            entered.set()
            assert gate.wait(kit.bound)

    backend = Hangs()
    session = kit.open(backend)
    failures: list[BaseException] = []

    def ask() -> None:
        try:
            session.stats()
        except StorageError as error:
            failures.append(error)

    caller = threading.Thread(target=ask)
    caller.start()
    assert entered.wait(kit.bound)
    report = session.close(0.5)
    kit.opened.remove(session)
    assert backend.closed == 1
    assert report.abandoned == 1
    gate.set()
    caller.join(kit.bound)
    assert len(failures) == 1
    assert "stats of store 'test' failed: timeout" in str(failures[0])


def test_a_callback_may_close_the_session(kit: Any) -> None:
    session = kit.open(kit.Plain())
    closed = threading.Event()

    def close(handle: Any) -> None:
        session.close(1.0)
        closed.set()

    session.submit_exists(kit.hashes(1)).add_done_callback(close)
    assert closed.wait(kit.bound)
    assert session.status().closed


def test_a_failed_opening_tells_its_own_error_though_close_fails_too(
    kit: Any, caplog: pytest.LogCaptureFixture
) -> None:
    class Refuses(kit.Plain):  # type: ignore[name-defined, misc]
        @hookimpl
        def register_region(self, buffer: memoryview) -> None:
            raise OSError("memlock limit")

        @hookimpl
        def close(self) -> None:
            raise RuntimeError("cannot close")

    with pytest.raises(OpenError, match="memlock limit"):
        kit.open(Refuses(), Capabilities(registration="region"))
    assert "cannot close" in caplog.text


def test_a_store_that_never_waits_is_called_on_the_thread_of_whoever_waits(kit: Any) -> None:
    seen: list[threading.Thread] = []

    class Here(kit.Plain):  # type: ignore[name-defined, misc]
        capabilities = Capabilities(nonblocking=True)

        @hookimpl
        def batch_exists(self, keys: Sequence[str]) -> int:
            seen.append(threading.current_thread())
            return len(keys)

    session = kit.open(Here())
    hashes = kit.hashes(3)
    assert session.exists(hashes) == 3
    assert session.submit_exists(hashes).result() == 3
    assert seen[0] is threading.current_thread()
    assert seen[1] is not seen[0], "whoever submits does not want to run it"


def test_an_interrupt_inside_such_a_store_is_the_callers_own(kit: Any) -> None:
    class Interrupted(kit.Plain):  # type: ignore[name-defined, misc]
        capabilities = Capabilities(nonblocking=True)

        @hookimpl
        def batch_exists(self, keys: Sequence[str]) -> int:
            raise KeyboardInterrupt

    session = kit.open(Interrupted())
    with pytest.raises(KeyboardInterrupt):
        session.exists(kit.hashes(1))
    assert session.submit_exists(kit.hashes(1)).result() == 0, "on a worker it is a failure of the store"
    assert session.status().running["read"] == 0
