"""Shared by processes: what one wrote, another finds, at once and whole; none takes what is another's."""

from __future__ import annotations

import threading

from hicache_conformance.casebook import case
from hicache_conformance.harness import Harness
from hicache_conformance.material import page_bytes
from hicache_conformance.processes import Agent
from hicache_conformance.verdict import check, check_bytes, check_equal
from hicache_core.types import Outcome


def _two(h: Harness) -> tuple[Agent, Agent]:
    """Two other processes, fresh interpreters with different PYTHONHASHSEED; ours has a third."""
    return Agent(h, hash_seed=1), Agent(h, hash_seed=4242)


def _end(*agents: Agent) -> None:
    """Let them close the store and go. Until then they keep it open: a store may lose what a process has brought."""
    for agent in agents:
        agent.order("nothing", close=True)
        agent.until("ended")


def _reads(agent: Agent, keys: list[str], shape: tuple[int, ...], what: str, **order: object) -> None:
    """The other process finds every key, with its bytes."""
    agent.order("get", keys, shape, **order)  # type: ignore[arg-type]
    event = agent.until("read")
    check(all(event["right"]), f"{what}: outcomes {event['outcomes']}, right bytes {event['right']}")
    check_equal(event["found"], len(keys), f"{what}: exists")


@case("shared", "shared: another process", rounds=1)
def what_one_process_wrote_every_process_reads(h: Harness) -> None:
    """Three interpreters with different PYTHONHASHSEED, all with the store open: each reads what each wrote."""
    one, two = _two(h)
    shape = h.shape(2, 2048)
    ours, first, second = (h.keys(6, start=n) for n in (0, 100, 200))
    store = h.open()
    h.store(store, ours, shape=shape)
    for agent, keys in ((one, first), (two, second)):
        agent.order("set", keys, shape, more=True)
        check_equal(set(agent.until("done")["outcomes"]), {"stored"}, "set in another process")
    every = [*ours, *first, *second]
    for agent in (one, two):
        _reads(agent, every, shape, "pages of three processes, read in another", more=True)
    check_equal(store.exists(every), 18, "exists of pages that three processes wrote")
    h.expect_hits(store, every, shape=shape)
    _end(one, two)


@case("shared", "shared: what was looked for before", rounds=1)
def a_process_sees_at_once_what_another_does(h: Harness) -> None:
    """A key that was missed here, then stored elsewhere, is a HIT here; a delete or replace elsewhere is seen too.

    An answer from a memory of this process is not good enough, neither of a miss nor of a page.
    """
    agent = Agent(h, hash_seed=1)
    shape = h.shape(1, 1024)
    store = h.open()
    agent.order("nothing", more=True)
    agent.until("ready")
    for turn in range(3):
        keys = h.keys(4, start=10 * turn)
        h.expect_gone(store, keys, shape=shape)
        agent.order("set", keys, shape, more=True)
        agent.until("done")
        check_equal(store.exists(keys), 4, "exists of keys that were missed before another process set them")
        h.expect_hits(store, keys, shape=shape)
    if h.capabilities.replace:
        agent.order("set", keys, shape, replace=True, version=3, more=True)
        agent.until("done")
        h.expect_hits(store, keys, shape=shape, version=3)
    if h.capabilities.delete == "immediate":
        agent.order("delete", keys[:2], more=True)
        check_equal(agent.until("deleted")["outcomes"], ["hit"] * 2, "delete in the other process")
        h.expect_gone(store, keys[:2], shape=shape)
        h.store(store, keys[:2], shape=shape, version=5)
        agent.order("get", keys[:2], shape, version=5, more=True)
        check_equal(agent.until("read")["right"], [True] * 2, "pages set again here, as the other process reads them")
    _end(agent)


@case("shared", "shared: atomic publication", rounds=1)
def two_processes_on_one_key_leave_one_whole_page(h: Harness) -> None:
    """Two processes set the same keys with different bytes at once: each key holds one page, whole, for everyone.

    With reports_exists exactly one of them is told STORED for each key, and it is the one whose bytes are there.
    """
    one, two = _two(h)
    shape = h.shape(4, 16 << 10)
    for agent in (one, two):
        agent.order("nothing", more=True)
        agent.until("ready")
    for turn in range(3):
        keys = h.keys(12, start=100 * turn)
        for version, agent in enumerate((one, two)):
            agent.order("set", keys, shape, version=version, batch=1 + turn, more=True)
        told = [_outcomes(agent, 12, 1 + turn) for agent in (one, two)]
        store = h.open()
        for n, key in enumerate(keys):
            outcome, data = h.fetch(store, key, shape)
            check_equal(outcome, Outcome.HIT, f"get of {key!r}, which two processes set")
            winner = next((v for v in (0, 1) if data == page_bytes(key, len(data), v)), None)
            check(winner is not None, f"{key!r}, which two processes set, holds a mixture of pages")
            answers = [told[0][n], told[1][n]]
            check(set(answers) <= {"stored", "exists"}, f"set of one key by two processes answered {answers}")
            if h.capabilities.reports_exists and winner is not None:
                stored = [v for v in (0, 1) if answers[v] == "stored"]
                check_equal(stored, [winner], f"who was told STORED for {key!r}, against whose bytes are there")
        store.close()
    _end(one, two)


def _outcomes(agent: Agent, count: int, batch: int) -> list[str]:
    """The answers to one order of `count` keys."""
    found: list[str] = []
    for _ in range(-(-count // batch)):
        found += agent.until("done")["outcomes"]
    return found


@case("shared", "shared: clear, keys", rounds=1)
def a_process_that_clears_takes_only_its_namespace(h: Harness) -> None:
    """One process clears its namespace while another goes on with its own: nothing of that one's is lost.

    A store without clear answers that it is not supported, and keeps both.
    """
    one, two = _two(h)
    shape = h.shape(1, 1024)
    mine, theirs = h.keys(6, ns=1), h.keys(6, ns=2)
    for agent, keys, ns in ((one, mine, 1), (two, theirs, 2)):
        agent.order("set", keys, shape, namespace=h.namespace(ns), more=True)
        check_equal(set(agent.until("done")["outcomes"]), {"stored"}, "set in another process")
    one.order("clear", what=h.namespace(1), more=True)
    cleared = one.until("cleared")["count"]
    later = h.keys(4, ns=2, start=50)
    two.order("set", later, shape, more=True)
    check_equal(set(two.until("done")["outcomes"]), {"stored"}, "set in a namespace beside the cleared one")
    _reads(two, [*theirs, *later], shape, "the other namespace after clear", more=True)
    store = h.open()
    h.expect_hits(store, [*theirs, *later], shape=shape)
    if cleared is None:
        h.expect_hits(store, mine, shape=shape)
    else:
        check_equal(cleared, 6, "keys that clear in the other process says it removed")
        h.expect_gone(store, mine, shape=shape)
        one.order("set", mine, shape, more=True)
        check_equal(set(one.until("done")["outcomes"]), {"stored"}, "set after clear, in the process that cleared")
        h.expect_hits(store, mine, shape=shape)
    _end(one, two)


@case("shared", "shared: atomic publication", rounds=1)
def a_reader_in_another_process_sees_whole_pages(h: Harness) -> None:
    """While another process publishes pages, this one gets MISS or all their bytes; what exists promised is there."""
    agent = Agent(h, hash_seed=1)
    shape = h.shape(4, 32 << 10)
    keys = h.keys(16)
    store = h.open()
    agent.order("set", keys, shape, batch=2, stay=True)
    pid = agent.until("opened")["pid"]
    written = threading.Event()

    def wait() -> None:
        try:
            _outcomes(agent, 16, 2)
        finally:
            written.set()

    def read() -> None:
        page = h.blank(shape)
        while True:
            last = written.is_set()
            for key in keys:
                promised = store.exists([key]) == 1
                outcome = store.get([key], [page])[0]
                if outcome is Outcome.HIT:
                    check_bytes(
                        page.data(), page_bytes(key, page.nbytes), f"{key!r}, read while another process sets it"
                    )
                else:
                    check_equal(outcome, Outcome.MISS, f"get of {key!r} while another process sets it")
                    check(not promised, f"exists promised {key!r} while another process sets it, and get missed it")
            if last:
                return

    h.together(wait, read)
    h.expect_hits(store, keys, shape=shape)
    agent.kill(pid)
    agent.until("ended")
