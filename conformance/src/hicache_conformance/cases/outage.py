"""The store's own server dies with kill -9 and comes back: nothing acknowledged is lost, nobody waits in vain."""

from __future__ import annotations

import threading

from hicache_conformance.backdoor import Outage
from hicache_conformance.casebook import case
from hicache_conformance.harness import Harness
from hicache_conformance.material import page_bytes
from hicache_conformance.sessioning import session_on
from hicache_conformance.verdict import CaseFailed, check, check_bytes, check_equal
from hicache_core.types import Outcome

_PAUSE = 0.1


@case("durable", "durable: the server is killed", rounds=1)
def acknowledged_pages_survive_the_death_of_the_server(h: Harness) -> None:
    """kill -9 of the server in the middle of sets, then a restart: what was acknowledged is there, the rest is whole
    or absent, and the store takes pages again.
    """
    outage = h.outage()
    shape = h.shape(4, 16 << 10)
    for turn in range(2):
        keys = h.keys(60, start=1000 * turn)
        done = _killed_in_a_set(h, outage, keys, shape)
        check(done, "no set was acknowledged before the server was killed")
        store = h.open()
        for key in keys:
            promised = store.exists([key]) == 1
            outcome, data = h.fetch(store, key, shape)
            if outcome is Outcome.MISS:
                check(not promised, f"exists promises {key!r} after the restart, but get misses it")
                check(key not in done, f"{key!r} was acknowledged before the server was killed, and is gone")
                continue
            check_equal(outcome, Outcome.HIT, f"get of {key!r} after the restart: whole or absent")
            check_bytes(data, page_bytes(key, len(data)), f"a torn page under {key!r} after the restart")
        check(all(h.put(store, keys, shape=shape)), "set of the same keys after the restart failed")
        h.expect_hits(store, keys, shape=shape)
        store.close()


def _killed_in_a_set(h: Harness, outage: Outage, keys: list[str], shape: tuple[int, ...]) -> set[str]:
    """Set the keys one by one, kill the server somewhere, restart it; the keys that were acknowledged."""
    done: set[str] = set()
    begun = threading.Semaphore(0)
    store = h.open()

    def write() -> None:
        for key in keys:
            begun.release()
            try:
                if h.put(store, [key], shape=shape)[0]:
                    done.add(key)
            except CaseFailed:
                return  # what the driver calls a failure is what a dead server looks like

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    for _ in range(h.rng.randrange(10, len(keys) - 10)):
        begun.acquire(timeout=h.patience)
    outage.kill()
    outage.restart()
    writer.join(h.patience)
    check(not writer.is_alive(), f"a set did not come back within {h.patience:g} s after its server was killed")
    h.let_threads_end(store)
    return done


@case("hostile", "a failing store costs recomputation: the server is killed", rounds=1)
def a_dead_server_costs_misses_and_is_found_again(h: Harness) -> None:
    """kill -9 of the server under an open session: no exception, no wrong page, no call past its deadline; when it is
    back, the same session stores and finds pages again.
    """
    outage = h.outage()
    s = session_on(h)
    hashes = s.hashes(4)
    check(all(s.put(hashes)), "set before the server was killed")
    outage.kill()
    try:
        for _ in range(3):
            pages = [h.blank(s.shape) for _ in hashes]
            outcomes = s.session.get(hashes, [page.buffers for page in pages], timeout=1.0)
            for page_hash, page, outcome in zip(hashes, pages, outcomes, strict=True):
                if outcome:  # from a memory on this side: as good as any, if it is the page
                    check_bytes(page.data(), page_bytes(page_hash, page.nbytes), "a page from a dead server")
            s.session.exists(hashes, timeout=1.0)
            stored = s.session.set(s.hashes(1, start=90), [s.page("any").buffers], timeout=1.0)
            check(not any(stored), f"set to a dead server answered {[o.name for o in stored]}")
    finally:
        outage.restart()
    pause = threading.Event()
    for n in range(int(2 * h.patience / _PAUSE)):
        fresh = s.hashes(2, start=1000 + 10 * n)
        if all(s.put(fresh)) and s.session.exists(fresh) == 2:
            s.expect_hits(fresh)
            return
        pause.wait(_PAUSE)
    raise CaseFailed(f"the session did not find back to its store within {2 * h.patience:g} s after the restart")
