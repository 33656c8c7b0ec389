"""Pages that were damaged behind the class: what an engine gets to compute with."""

from __future__ import annotations

from collections.abc import Callable

from hicache_conformance.peer.casebook import peer_case
from hicache_conformance.peer.harness import PAGE, PeerHarness, no_hit, told
from hicache_conformance.verdict import CaseFailed, NotApplicable, check, check_equal
from hicache_core.types import Outcome


@peer_case("integrity", "missing integrity check")
def a_flipped_bit_is_no_hit(h: PeerHarness) -> None:
    """One bit of a stored page is flipped where it is stored; the page is read."""
    store, key = h.open(), h.key()
    h.store(store, [key])
    h.damage(h.page(key), _flipped)
    answer, found = h.read(store, key)
    no_hit(answer, found, h.page(key), "a page with one flipped bit")


def _flipped(data: bytes) -> bytes:
    return data[:137] + bytes([data[137] ^ 1]) + data[138:]


def _damaged(h: PeerHarness, change: Callable[[bytes], bytes], what: str) -> Outcome | Exception:
    store, key = h.open(), h.key()
    h.store(store, [key])
    h.damage(h.page(key), change, alone=True)
    answer, found = h.read(store, key)
    no_hit(answer, found, h.page(key), what)
    return answer


def _cut(data: bytes) -> bytes:
    return data[: PAGE // 5]


def _emptied(data: bytes) -> bytes:
    return b""


@peer_case("integrity", "a page cut short is served")
def a_page_cut_short_is_no_hit(h: PeerHarness) -> None:
    """A stored page is cut to a fifth; the page is read."""
    _damaged(h, _cut, "a page that was cut short")


@peer_case("integrity", "an empty page is served")
def an_empty_page_is_no_hit(h: PeerHarness) -> None:
    """A stored page is cut to nothing, as a crash of the machine may leave a file; the page is read."""
    _damaged(h, _emptied, "a page without bytes")


@peer_case("integrity", "a page of another length is served")
def a_page_that_grew_is_no_hit(h: PeerHarness) -> None:
    """Bytes are put behind a stored page; a check of the length would see it."""
    store, key = h.open(), h.key()
    h.store(store, [key])
    h.damage(h.page(key), lambda data: data + b"\xff" * 512, alone=True)
    answer, _ = h.read(store, key)
    check(answer is not Outcome.HIT, "what is stored is 512 bytes longer than the page, and is a hit")


@peer_case("integrity", "a damaged page raises into the engine")
def damage_is_answered_and_not_raised(h: PeerHarness) -> None:
    """A stored page is cut short; the read says that there is no such page, and does not raise."""
    answer = _damaged(h, _cut, "a page that was cut short")
    check(isinstance(answer, Outcome), f"get of a page cut short {told(answer)}")


@peer_case("integrity", "a page that stays broken")
def the_next_set_heals_a_broken_page(h: PeerHarness) -> None:
    """A stored page is emptied, or overwritten where pages share a file; it is set again, with success, and read."""
    store, key = h.open(), h.key()
    h.store(store, [key])
    try:
        h.damage(h.page(key), _emptied, alone=True)
    except NotApplicable:
        h.damage(h.page(key), lambda data: bytes(len(data)))
    said = store.set([key], [h.page(key)])[0]
    if said is not Outcome.STORED:
        raise CaseFailed("the set of a broken page is refused, and it stays broken")
    answer, found = h.read(store, key)
    whole = answer is Outcome.HIT and found == h.page(key)
    check(whole, f"set of a broken page says True and writes nothing: the next get {_still(answer)}")


def _still(answer: Outcome | Exception) -> str:
    return "hands out the broken bytes" if answer is Outcome.HIT else f"answers {told(answer)}"


@peer_case("integrity", "bytes that no one stored")
def pages_come_back_as_they_were(h: PeerHarness) -> None:
    """A batch of pages is set and read back, by another object of the class where it keeps files."""
    store, keys = h.open(), h.keys(20)
    h.store(store, keys)
    for key in keys:
        answer, found = h.read(store, key)
        check_equal(answer, Outcome.HIT, "get of a stored page")
        check(found == h.page(key), "a page that was stored comes back with other bytes")
