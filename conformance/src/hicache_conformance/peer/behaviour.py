"""What SGLang relies on without saying so, and what a process with a storage class in it should stay."""

from __future__ import annotations

import signal
import threading

from hicache_conformance.peer.casebook import peer_case
from hicache_conformance.peer.harness import PeerHarness, told
from hicache_conformance.verdict import NotApplicable, check, check_equal, short
from hicache_core.types import Outcome


@peer_case("behaviour", "exists is not the leading run")
def exists_is_the_leading_run(h: PeerHarness) -> None:
    """Of eight pages the fourth is missing: batch_exists says three."""
    store, keys = h.open(), h.keys(8)
    h.store(store, [key for i, key in enumerate(keys) if i != 3])
    check_equal(store.exists(keys), 3, "batch_exists of 8 keys without the fourth")
    check_equal(store.exists(keys[4:]), 4, "batch_exists of 4 stored keys")
    check_equal(store.exists([h.key(99), *keys]), 0, "batch_exists of keys whose first is missing")


@peer_case("behaviour", "a missing page raises or hits")
def a_missing_page_is_a_miss(h: PeerHarness) -> None:
    """A key that no one stored is read."""
    store = h.open()
    answer, _ = h.read(store, h.key())
    check(answer is Outcome.MISS, f"get of a key that no one stored: {told(answer)}")


@peer_case("behaviour", "a hole in a batch gives the page behind it wrong bytes")
def a_batch_with_a_hole_answers_each_key(h: PeerHarness) -> None:
    """The middle one of three pages is missing: whatever is called a hit has its own bytes."""
    store, keys = h.open(), h.keys(3)
    h.store(store, keys[::2])
    targets = [bytearray(b"\xaa") * 4096 for _ in keys]
    outcomes = store.get(keys, targets)
    check(outcomes[1] is not Outcome.HIT, "a missing page in the middle of a batch is a hit")
    for key, target, outcome in zip(keys, targets, outcomes, strict=True):
        if outcome is Outcome.HIT:
            check(
                bytes(target) == h.page(key), "a page behind a missing one is a hit with bytes that are not its own"
            )


@peer_case("behaviour", "a set of a known key tears its page")
def a_known_key_keeps_a_whole_page(h: PeerHarness) -> None:
    """A stored key is set again with other bytes: it has the old ones or the new ones."""
    store, key = h.open(), h.key()
    h.store(store, [key])
    store.set([key], [h.page(key, 1)])
    answer, found = h.read(store, key)
    check_equal(answer, Outcome.HIT, "get after a second set")
    check(found in (h.page(key), h.page(key, 1)), "neither the old nor the new page after a second set")


@peer_case("behaviour", "the process's signal handlers are replaced")
def signal_handlers_are_left_alone(h: PeerHarness) -> None:
    """The handlers of SIGINT, SIGTERM and SIGQUIT are the same before and after the class is constructed."""
    watched = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT)
    before = [signal.getsignal(number) for number in watched]
    h.open()
    changed = [n.name for n, old in zip(watched, before, strict=True) if signal.getsignal(n) != old]
    check(not changed, f"the constructor replaced the process's handlers of {', '.join(changed)}")


@peer_case("behaviour", "close leaves threads behind")
def close_leaves_no_thread(h: PeerHarness) -> None:
    """The class is used and closed: no thread of it is left."""
    before = set(threading.enumerate())
    store = h.open()
    h.store(store, h.keys(4))
    h.read(store, h.key())
    store.close()
    left = [t for t in threading.enumerate() if t not in before]
    for thread in left:
        thread.join(5)
    names = sorted(t.name for t in left if t.is_alive())
    check(not names, f"after close() there are still {len(names)} threads: {', '.join(names[:3])}")


@peer_case("behaviour", "a v1 batch is not answered key by key")
def a_v1_batch_answers_each_key(h: PeerHarness) -> None:
    """batch_set_v1 and batch_get_v1 of three pages answer lists of three."""
    store = h.open()
    if not store.v1:
        raise NotApplicable("the class has no v1 methods of its own")
    pool = store.page_pool()
    slots = pool.take(3)
    for method in ("batch_set_v1", "batch_get_v1"):
        answer = getattr(store.peer, method)(h.keys(3), pool.indices(slots))
        check(isinstance(answer, list) and len(answer) == 3, f"{method} of 3 pages answers {short(answer)}")
