"""One transfer at a time over TCP."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hicache_mooncake import client as module
from hicache_mooncake.client import Client
from hicache_mooncake.latch import Latch
from hicache_mooncake.objects import Objects
from hicache_mooncake.options import CALL_BYTES, MooncakeOptions, capabilities, in_turn

from hicache_core.errors import StorageError

ONE = Objects([[1]], [[2]], [2])


class Sdk:
    """Notes how many transfers run at once."""

    def __init__(self) -> None:
        self.inside, self.most = 0, 0
        self.entered, self.leave = threading.Semaphore(0), threading.Event()
        self.mutex = threading.Lock()

    def batch_get_into_multi_buffers(self, keys: Any, ptrs: Any, sizes: Any) -> list[int]:
        with self.mutex:
            self.inside += 1
            self.most = max(self.most, self.inside)
        self.entered.release()
        assert self.leave.wait(30)
        with self.mutex:
            self.inside -= 1
        return [2]

    def batch_put_from_multi_buffers(self, keys: Any, ptrs: Any, sizes: Any, policy: Any) -> list[int]:
        return self.batch_get_into_multi_buffers(keys, ptrs, sizes)


def two_at_once(turns: bool) -> int:
    sdk = Sdk()
    client = Client(sdk, None, Latch(lambda: "", 1.0), "master", in_turn=turns)
    calls = [lambda: client.get(["a"], ONE), lambda: client.put(["b"], ONE)]
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for _ in range(1 if turns else 2):
        assert sdk.entered.acquire(timeout=30)
    sdk.leave.set()
    for thread in threads:
        thread.join(30)
    assert not sdk.inside
    return sdk.most


def test_transfers_take_turns_where_they_would_hinder_each_other() -> None:
    assert two_at_once(True) == 1
    assert two_at_once(False) == 2


def test_a_turn_that_never_ends_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TURN_SECONDS", 0.01)
    sdk = Sdk()
    client = Client(sdk, None, Latch(lambda: "", 1.0), "master", in_turn=True)
    stuck = threading.Thread(target=lambda: client.get(["a"], ONE))
    stuck.start()
    assert sdk.entered.acquire(timeout=30)
    with pytest.raises(StorageError, match="has not ended"):
        client.get(["a"], ONE)
    sdk.leave.set()
    stuck.join(30)
    assert client.get(["a"], ONE) == [2]


@pytest.mark.parametrize(
    ("more", "turns", "call_bytes"),
    [
        ({}, True, None),
        ({"segment_size": 1 << 30}, False, CALL_BYTES),
        ({"protocol": "rdma"}, False, None),
        ({"standalone_address": "localhost:1"}, False, None),
    ],
)
def test_who_takes_turns_and_who_gets_small_calls(more: Any, turns: bool, call_bytes: int | None) -> None:
    options = MooncakeOptions(master_address="localhost:1", **more)
    assert in_turn(options) is turns
    assert capabilities(options).call_bytes == call_bytes
    assert capabilities(options).spread is not turns
