"""Who is inside a store, and who lets go of it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import pytest

from hicache_core.errors import MisuseError
from hicache_core.storage.gate import Gate, tell_forked_child


@pytest.fixture
def released() -> list[str]:
    """Names of the threads that released, in order."""
    return []


@pytest.fixture
def gate(released: list[str]) -> Gate:
    return Gate("test store", lambda: released.append(threading.current_thread().name))


def test_close_releases_once_and_lets_nobody_in(gate: Gate, released: list[str]) -> None:
    with gate.call():
        assert not released
    assert gate.close(0.0)
    assert gate.close(0.0)
    assert released == [threading.current_thread().name]
    with pytest.raises(MisuseError, match="this test store is closed"), gate.call():
        pass


def test_close_waits_for_a_call_that_runs_and_releases_itself(gate: Gate, released: list[str]) -> None:
    inside, leave = threading.Event(), threading.Event()
    caller = _start(lambda: _stay(gate, inside, leave), "caller")
    assert inside.wait(30)
    closer = _start(lambda: gate.close(30.0), "closer")
    with gate._idle:
        assert gate._idle.wait_for(lambda: gate._closed, 30)
    assert not released
    leave.set()
    caller.join(30)
    closer.join(30)
    assert released == ["closer"]


def test_the_last_call_releases_once_close_has_lost_patience(gate: Gate, released: list[str]) -> None:
    inside, leave = threading.Event(), threading.Event()
    caller = _start(lambda: _stay(gate, inside, leave), "caller")
    assert inside.wait(30)
    assert not gate.close(0.0)
    assert not released
    leave.set()
    caller.join(30)
    assert released == ["caller"]


def test_a_call_that_raises_has_left(gate: Gate, released: list[str]) -> None:
    with pytest.raises(ZeroDivisionError), gate.call():
        raise ZeroDivisionError
    assert gate.close(0.0)
    assert len(released) == 1


def test_a_forked_child_gets_in_nowhere_and_releases_nothing(gate: Gate, released: list[str]) -> None:
    class Open:
        def leave_to_parent(self) -> None:
            gate.abandon()

    mine = Open()
    tell_forked_child(mine)
    with gate._idle:  # as if another thread of the parent had held it in that moment
        child = os.fork()
        if not child:
            said = ""
            try:
                with gate.call():
                    pass
            except MisuseError as error:
                said = str(error)
            gate.close(0.0)
            os._exit(0 if "a forked one opens its own" in said and not released else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with gate.call():
        pass


def test_one_that_cannot_be_left_to_the_parent_leaves_the_others_shut(gate: Gate) -> None:
    class Failing:
        def leave_to_parent(self) -> None:
            raise OSError("closed before the fork")

    class Open:
        def leave_to_parent(self) -> None:
            gate.abandon()

    kept = [Failing(), Open(), Failing(), Open(), Failing()]
    for one in kept:
        tell_forked_child(one)
    child = os.fork()
    if not child:
        try:
            with gate.call():
                os._exit(1)
        except MisuseError:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    kept.clear()


def _stay(gate: Gate, inside: threading.Event, leave: threading.Event) -> None:
    with gate.call():
        inside.set()
        assert leave.wait(30)


def _start(work: Callable[[], object], name: str) -> threading.Thread:
    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    return thread
