"""Long seeded walks, several requests under way, over every policy and fault; and proof that they go everywhere.

The last seeds go over a store that keeps calls inside, with pools of a few pages.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from typing import Any

import msgspec
import pytest

from hicache_core.controller.request import Request, RequestState
from hicache_core.errors import StorageError, TransferError
from hicache_core.storage.session import StorageSession

BOUND = 30.0
PAGE = 4
STEPS = 400
SEEDS = 20
HELD_FROM = 12
WRITE = ("write_through", "write_through_selective", "write_back")
PREFETCH = ("best_effort", "wait_complete", "timeout")
EVICTION = ("lru", "lfu", "fifo", "slru", "filo", "mru", "priority")
seen: Counter[str] = Counter()


class Walk:
    """One cache, its stores, and requests in every state."""

    def __init__(
        self, seed: int, build_engine: Any, open_storage: Any, open_gated: Any, store: Any, tokens_for: Any
    ) -> None:
        self.dice = random.Random(seed)
        self.open_storage, self.open_gated, self.tokens_for, self.seed = open_storage, open_gated, tokens_for, seed
        self.store = store if seed >= HELD_FROM else None
        self.failing = ""
        self.engine = build_engine(
            device_pages=self.dice.randint(1, 8) if self.store else self.dice.randint(10, 20),
            host_pages=self.dice.randint(1, 8) if self.store else self.dice.randint(12, 30),
            session=self.open_store(),
            transfer_hook=self.hook,
            hicache_write_policy=WRITE[seed % 3],
            hicache_storage_prefetch_policy=PREFETCH[seed // 3 % 3],
            eviction_policy=EVICTION[seed % 7],
            prefetch_timeout_base=0.0,
            prefetch_timeout_per_ki_token=0.0,
            write_retry_limit=4,
            negative_cache_ttl=0.01,
        )
        self.cache = self.engine.cache
        self.waiting: list[Request] = []
        self.running: list[Request] = []

    def open_store(self) -> StorageSession:
        if self.store:
            return self.open_gated(timeout=0.02)
        if self.seed % 4 == 0:
            return self.open_storage("memory", name=f"walk-{self.seed}")
        faults = {"fail": 0.08, "flip": 0.2, "truncate": 0.2, "reorder": 0.03, "stale_exists": 0.05}
        faults["at"] = "get" if self.seed % 2 else "set"
        return self.open_storage("fault", inner="memory", seed=self.seed, name=f"walk-{self.seed}", **faults)

    def hook(self, direction: str, layer: int) -> None:
        if direction == self.failing and layer == (direction == "load"):
            raise OSError("a copy that was made to fail")

    def arrive(self) -> None:
        talk = [self.dice.randint(0, 3)]
        while self.dice.random() < 0.75 and len(talk) < 7:
            talk.append(self.dice.randint(0, 1))
        tokens = self.tokens_for(*talk).tolist() + [9] * self.dice.randint(0, PAGE - 1)
        limit = self.dice.choice([None, len(tokens) - 1])
        salt = self.dice.choice([None, None, None, "a"])
        request = self.cache.new_request("r", tokens, cache_salt=salt, reuse_limit=limit)
        self.cache.prefetch_from_storage(request)
        self.waiting.append(request)

    def admit(self) -> None:
        request = self.dice.choice(self.waiting)
        if self.dice.random() < 0.7:
            self.engine.wait_for_prefetch(request)
        elif not self.cache.check_prefetch_progress(request):
            return
        self.cache.init_load_back(request, mem_quota_pages=self.dice.choice([None, None, None, 1]))
        self.waiting.remove(request)
        producer = self.cache.ready_to_load_host_cache()
        try:
            self.cache.wait_layer(producer, 0)
            self.cache.wait_layer(producer, 1)
        except TransferError:
            self.send_back(request)
            for other in [running for running in self.running if running.load_failed]:
                self.running.remove(other)
                self.send_back(other)
        if request.state is RequestState.ADMITTED:
            self.engine.compare(request, request.prefix_pages)
            if self.engine.compute(request):
                self.running.append(request)
            else:
                self.send_back(request)

    def send_back(self, request: Request) -> None:
        self.cache.abandon(request)
        self.waiting.append(request)

    def commit(self) -> None:
        request = self.dice.choice(self.running)
        self.cache.cache_unfinished_req(request, self.dice.randint(0, len(request)))
        self.engine.compare(request, request.pages)

    def decode(self) -> None:
        request = self.dice.choice(self.running)
        before = len(request)
        request.extend([self.dice.randint(0, 1)] * self.dice.randint(1, PAGE))
        if not self.engine.compute(request):
            self.running.remove(request)
            self.cache.cache_finished_req(request, before)

    def finish(self) -> None:
        request = self.running.pop(self.dice.randrange(len(self.running)))
        self.cache.cache_finished_req(request)

    def abort(self) -> None:
        pool = self.dice.choice([self.running, self.waiting])
        if pool:
            self.cache.abort_req(pool.pop(self.dice.randrange(len(pool))))

    def around(self) -> None:
        what = self.dice.randrange(12)
        if what < 3:
            self.cache.evict(self.dice.randint(1, 8))
        elif what < 5:
            self.cache.evict_host(self.dice.randint(1, 8))
        elif what < 7:
            self.cache.drain(0.02)
        elif what < 9:
            self.failing = self.dice.choice(["", "", "load", "backup"])
        elif what == 9 and not self.running:
            for _ in range(self.dice.randint(1, 2)):
                self.cache.reset()
        elif what == 10:
            if self.cache.session is None:
                self.cache.attach_storage_backend(self.open_store(), push=self.dice.random() < 0.5)
            else:
                self.cache.detach_storage_backend("drain", 0.02)
        elif self.cache.session is not None and self.dice.random() < 0.2:
            with contextlib.suppress(StorageError):
                self.cache.clear()

    def turn(self) -> None:
        """Calls of one kind stay inside the store from now on, or come out."""
        hook = self.dice.choice(list(self.store.gates))
        self.dice.choice([self.store.hold, self.store.release])(hook)

    def step(self) -> None:
        choices = [self.turn] if self.store else []
        choices += [self.arrive] if len(self.waiting) < 3 else []
        choices += [self.admit] * 3 if self.waiting and len(self.running) < 3 else []
        choices += [self.finish, self.finish, self.commit, self.decode] if self.running else []
        choices += [self.around, self.around, self.cache.check_hicache_events]
        choices += [self.abort] if self.dice.random() < 0.3 else []
        self.dice.choice(choices)()
        self.engine.check()

    def end(self) -> None:
        for hook in self.store.gates if self.store else ():
            self.store.release(hook)
        for request in self.running:
            self.cache.cache_finished_req(request)
        for request in self.waiting:
            self.cache.abort_req(request)
        if self.cache.session is not None:
            self.cache.detach_storage_backend("drain", 0.02)
        while self.cache.status()["quarantined_pages"] or any(node.host_lock_ref for node in self.cache.tree.walk()):
            assert self.cache.wait_for_events(BOUND)
            self.cache.check_hicache_events()
        self.engine.check_at_rest()
        self.cache.reset()
        self.engine.check_at_rest()
        assert self.engine.host.available == self.engine.host.capacity
        assert self.cache.device_pool.available == self.cache.device_pool.capacity
        tiers = self.cache.ledger.tiers
        assert all(book.open == 0 for book in tiers.values())
        seen.update(msgspec.to_builtins(self.cache.counters))
        seen.update({f"{tier} used": book.used for tier, book in tiers.items()})
        seen.update({reason.value: tokens for book in tiers.values() for reason, tokens in book.lost.items()})
        assert self.cache.shutdown(BOUND)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_walk(seed: int, build_engine: Any, open_storage: Any, open_gated: Any, store: Any, pages: Any) -> None:
    walk = Walk(seed, build_engine, open_storage, open_gated, store, pages)
    for _ in range(STEPS):
        walk.step()
    walk.end()


def test_the_walks_went_everywhere() -> None:
    if not seen:
        pytest.skip("needs the walks before it in the same run")
    moved = ("backed_up", "loaded", "prefetched", "stored", "demoted", "dropped", "evicted_host")
    failed = ("backup_failed", "load_failed", "store_retries", "store_given_up")
    used = ("device used", "host used", "storage used")
    lost = ("corrupt", "unavailable", "load_failed", "device_capacity", "deadline")
    assert {name for name in (*moved, *failed, *used, *lost) if not seen[name]} == set()
