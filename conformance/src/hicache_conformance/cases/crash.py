"""What survives: a reopen, another process, kill -9 in the middle of a set."""

from __future__ import annotations

from pathlib import Path

from hicache_conformance.backdoor import BackDoor
from hicache_conformance.casebook import case
from hicache_conformance.driver import Driver
from hicache_conformance.harness import Harness
from hicache_conformance.material import page_bytes
from hicache_conformance.processes import Agent
from hicache_conformance.verdict import check, check_bytes, check_equal
from hicache_core.types import Outcome

_KILLS = 16


@case("durable", "durable")
def pages_survive_a_reopen(h: Harness) -> None:
    """Closed and opened again, the store has every page, and does not take them for new ones."""
    keys = h.keys(20)
    first = h.open()
    h.store(first, keys)
    first.close()
    second = h.open()
    check_equal(second.exists(keys), 20, "exists after a reopen")
    h.expect_hits(second, keys)
    again = h.put(second, keys, version=1)
    check(all(again), "set of known keys after a reopen failed")
    if h.capabilities.reports_exists:
        check_equal(set(again), {Outcome.EXISTS}, "set of known keys after a reopen")
    h.expect_hits(second, keys)


@case("durable", "durable", rounds=1)
def another_process_finds_the_pages(h: Harness) -> None:
    """A fresh interpreter with another PYTHONHASHSEED reads what this one wrote, and the other way round."""
    mine, theirs = h.keys(10), h.keys(10, start=100)
    shape = h.shape(2, 4096)
    store = h.open()
    h.store(store, mine, shape=shape)
    if not h.capabilities.shared:  # it may belong to one process at a time
        store.close()
    for seed in (1, 4242):
        agent = Agent(h, hash_seed=seed)
        agent.order("get", mine, shape)
        check(all(agent.until("read")["right"]), f"a process with PYTHONHASHSEED={seed} does not find the pages")
        agent.until("ended")
        agent.order("set", theirs, shape, close=True)
        agent.until("ended")
    if h.capabilities.shared:
        h.expect_hits(store, theirs, shape=shape)
        store.close()
    h.expect_hits(h.open(), [*mine, *theirs], shape=shape)


@case("durable", "durable", rounds=1)
def an_acknowledged_page_survives_kill_9(h: Harness) -> None:
    """A page whose set had answered STORED is there after the writer was killed without closing."""
    agent = Agent(h)
    shape = h.shape(2, 16 << 10)
    for turn in range(3):
        keys = h.keys(16, start=100 * turn)
        agent.order("set", keys, shape, stay=True)
        pid = agent.until("opened")["pid"]
        for _ in range(2):
            check_equal(set(agent.until("done")["outcomes"]), {"stored"}, "set in the other process")
        agent.kill(pid)
        agent.until("ended")
        store = h.open()
        check_equal(store.exists(keys), 16, "exists after the writer was killed")
        h.expect_hits(store, keys, shape=shape)
        store.close()


@case("durable", "atomic publication: kill -9", rounds=1)
def no_torn_page_is_readable_after_kill_9(h: Harness) -> None:
    """A writer is killed at random points of a set: each page is whole or absent, and acknowledged ones are there.

    An instance that was open all the time goes on working after each kill; where the store is not shared, one that
    was opened after it.
    """
    agent = Agent(h)
    shape = h.shape(4, 64 << 10)
    witness = h.open() if h.capabilities.shared else None
    for turn in range(_KILLS):
        keys = h.keys(24, start=1000 * turn)
        done = _kill_in_a_set(h, agent, keys, shape)
        store = h.open()
        for key in keys:
            _whole(h, store, key, shape, versions=(0,), must=key in done)
        living = witness or store
        own = h.keys(3, start=1000 * turn + 900)
        h.store(living, own, shape=shape)
        h.expect_hits(living, own, shape=shape)
        check(all(h.put(living, keys, shape=shape)), "setting the killed writer's keys again failed")
        h.expect_hits(living, keys, shape=shape)
        store.close()


def _kill_in_a_set(
    h: Harness,
    agent: Agent,
    keys: list[str],
    shape: tuple[int, ...],
    *,
    replace: bool = False,
    version: int = 0,
) -> set[str]:
    """Start a writer, kill it somewhere, and say which keys it had acknowledged."""
    batch = h.rng.choice((1, 2, 4))
    agent.order("set", keys, shape, batch=batch, again=replace, replace=replace, version=version, stay=True)
    pid = agent.until("opened")["pid"]
    for _ in range(h.rng.randrange(max(1, len(keys) // batch)) + 1):
        agent.until("begin")
    for _ in range(int(10 ** h.rng.uniform(2.5, 6.3))):
        pass  # not a wait: it only moves the point at which the signal arrives, from microseconds to tens of ms
    agent.kill(pid)
    # What had been acknowledged before the kill may still be on its way to us: it counts too.
    return {
        key
        for event in [*agent.passed, *agent.rest()]
        if event["event"] == "done"
        for key, outcome in zip(keys[event["start"] : event["start"] + batch], event["outcomes"], strict=True)
        if outcome in ("stored", "exists")
    }


def _whole(
    h: Harness, store: Driver, key: str, shape: tuple[int, ...], *, versions: tuple[int, ...], must: bool
) -> int | None:
    promised = store.exists([key]) == 1
    outcome, data = h.fetch(store, key, shape)
    if outcome is Outcome.MISS:
        check(not promised, f"exists promises {key!r} after a kill, but get misses it")
        check(not must, f"{key!r} was acknowledged before the kill, and is gone")
        return None
    check_equal(outcome, Outcome.HIT, f"get of {key!r} after its writer was killed: whole or absent")
    found = next((v for v in versions if data == page_bytes(key, len(data), v)), None)
    if found is None:
        check_bytes(data, page_bytes(key, len(data), versions[0]), f"a torn page under {key!r} after a kill")
    return found


@case("durable", "atomic publication: replace, kill -9", rounds=1)
def a_replace_that_was_killed_leaves_one_whole_page(h: Harness) -> None:
    """A writer is killed while it replaces pages: each is the old or the new one, whole, and none is lost.

    Without the capability it is killed while it sets them again: the old ones stay.
    """
    agent = Agent(h)
    shape = h.shape(4, 64 << 10)
    keys = h.keys(8)
    store = h.open()
    h.store(store, keys, shape=shape)
    if not h.capabilities.shared:
        store.close()
    replace = h.capabilities.replace
    versions: tuple[int, ...] = tuple(range(2000)) if replace else (0,)
    for _ in range(_KILLS // 2):
        _kill_in_a_set(h, agent, keys, shape, replace=replace, version=1 if replace else 0)
        fresh = h.open()
        for key in keys:
            _whole(h, fresh, key, shape, versions=versions, must=True)
        fresh.close()


@case("durable", "atomic publication: kill -9", rounds=1)
def what_killed_writers_leave_does_not_grow(h: Harness) -> None:
    """Left-overs of killed writers are cleaned up: after many kills there are no more than after a few."""
    agent = Agent(h)
    shape = h.shape(4, 64 << 10)
    early = late = 0
    for turn in range(_KILLS):
        keys = h.keys(16, start=1000 * turn)
        _kill_in_a_set(h, agent, keys, shape)
        store = h.open()
        door = h.back_door(store.backend)
        h.store(store, h.keys(2, start=1000 * turn + 900), shape=shape)
        store.close()
        found = _leftovers(door)
        if turn < _KILLS // 4:
            early = max(early, found)
        late = found
    check(late <= early + 2, f"{late} left-overs after {_KILLS} kills, {early} after the first {_KILLS // 4}")
    written = {key for turn in range(_KILLS) for key in h.keys(902, start=1000 * turn)}
    strange = sorted(k for k in door.raw_list() if k.startswith(h.namespace() + "/") and k not in written)
    check(not strange, f"keys that no one set: {strange[:3]}")


def _leftovers(door: BackDoor) -> int:
    """How many files of the store are no pages; of a store that keeps no files, only its keys are looked at."""
    if door.root is None:
        return 0
    files = sum(path.is_file() for path in Path(door.root).rglob("*"))
    return files - len(door.raw_list())
