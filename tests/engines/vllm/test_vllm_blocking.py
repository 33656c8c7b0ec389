"""No call of the tier waits: vLLM holds its manager's lock meanwhile, and its scheduler stands still."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

Start = Callable[..., Any]

CALLS = (
    "lookup",
    "submit_store",
    "submit_load",
    "get_finished_jobs",
    "on_new_request",
    "on_request_finished",
    "on_schedule_end",
    "has_pending_work",
    "take_events",
    "touch",
    "get_stats",
)
EVENTS = ("open", "os.", "socket.", "time.sleep", "shutil.", "subprocess.", "fcntl.", "mmap.", "ctypes.", "import")
WAITS = {"sleep", "acquire", "wait", "join", "select", "poll", "read", "write", "recv", "send", "fsync"}
"""C functions that may stand still. `with lock:` on a lock that is free is none of them."""


class Watch:
    """What happens on this thread inside calls of the tier."""

    def __init__(self) -> None:
        self.thread = 0
        self.inside = ""
        self.seen: list[str] = []

    def audit(self, event: str, _: tuple[Any, ...]) -> None:
        if self.inside and threading.get_ident() == self.thread and event.startswith(EVENTS):
            self.seen.append(f"{self.inside}: {event}")

    def profile(self, frame: FrameType, event: str, called: Any) -> None:
        if not self.inside:
            return
        if event == "c_call" and (
            called.__name__ in WAITS or (called.__name__ == "get" and "SimpleQueue" in called.__qualname__)
        ):
            self.seen.append(f"{self.inside}: {called.__qualname__}")
        if event == "call" and frame.f_code.co_name in ("wait", "join", "result", "abandon"):
            self.seen.append(f"{self.inside}: {frame.f_code.co_qualname}")

    def guard(self, tier: Any) -> None:
        """Watch every call that the manager makes of this tier."""
        self.thread = threading.get_ident()
        for name in CALLS:
            if hasattr(tier, name):
                setattr(tier, name, self._guarded(name, getattr(tier, name)))

    def _guarded(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any, **named: Any) -> Any:
            self.inside = name
            sys.setprofile(self.profile)
            try:
                return call(*arguments, **named)
            finally:
                sys.setprofile(None)
                self.inside = ""

        return watched


_watch = Watch()
_hooked: list[bool] = []


@pytest.fixture
def watch() -> Iterator[Watch]:
    """One audit hook for the whole run: they cannot be removed."""
    if not _hooked:
        sys.addaudithook(lambda event, arguments: _watch.audit(event, arguments))
        _hooked.append(True)
    _watch.seen.clear()
    yield _watch
    _watch.inside = ""


def test_the_watch_sees_what_waits(watch: Watch, tmp_path: Any) -> None:
    class Waiting:
        def lookup(self) -> None:
            (tmp_path / "file").write_bytes(b"")

        def submit_store(self) -> None:
            threading.Event().wait(0)

        def submit_load(self) -> None:
            threading.Lock().acquire(timeout=0.001)

        def __getattr__(self, name: str) -> Any:
            return lambda: None

    tier = Waiting()
    watch.guard(tier)
    tier.lookup()
    tier.submit_store()
    tier.submit_load()
    tier.get_finished_jobs()
    assert {seen.partition(":")[0] for seen in watch.seen} == {"lookup", "submit_store", "submit_load"}


def test_no_call_of_a_busy_tier_waits(start: Start, tier_config: dict[str, Any], harness: Any, watch: Watch) -> None:
    engine = start({**tier_config, "enable_kv_events": True}, events=True, chunks=8)
    watch.guard(engine.tier)
    for turn in range(5):
        context = engine.new_request()
        keys = [harness.key_of(turn * 8 + i) for i in range(8)]
        engine.store(keys)
        assert engine.verdicts(harness.key_of(1000 + turn), context)[-1] == "MISS"
        if turn:
            assert engine.comes_back(harness.key_of((turn - 1) * 8))
        with engine.lock:
            engine.manager.touch(keys, context)
            engine.tier.get_stats()
            list(engine.manager.take_events())
        engine.end_request(context)
    assert watch.seen == []


def test_no_call_waits_for_a_store_that_hangs(start: Start, tmp_path: Any, harness: Any, watch: Watch) -> None:
    """Every thread of the session is inside the store, and the tier still answers each call at once."""
    tier = harness.fault_tier(tmp_path, {"stall": 1.0}, timeout=0.2, hold=0.0)
    engine = start(tier, chunks=16)
    watch.guard(engine.tier)
    for i in range(12):
        engine.put([harness.key_of(i)])
        engine.lookup(harness.key_of(100 + i))
        engine.step()
    engine.settle()
    assert not engine.tier._open
    assert watch.seen == []
