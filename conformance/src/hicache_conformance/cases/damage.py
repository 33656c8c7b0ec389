"""Pages that were damaged behind the backend's back: never a wrong page, counted, and healed by the next write."""

from __future__ import annotations

from collections.abc import Callable

from hicache_conformance.backdoor import BackDoor
from hicache_conformance.casebook import case
from hicache_conformance.harness import Harness
from hicache_conformance.proxy import Boasting, Damaging
from hicache_conformance.sessioning import Opened, identity_of, session_on
from hicache_conformance.verdict import check, check_bytes, check_equal
from hicache_core.storage import SessionSettings
from hicache_core.types import Outcome, Page

_HEALS_AT_LEAST = 16
"""The healing budget of a session and minute, at least: see hicache_core.storage.damage."""


@case("hostile", "the back door itself")
def the_back_door_opens_the_store(h: Harness) -> None:
    """What a session stored is at the back door under its physical key, and what is put there the session reads."""
    s = session_on(h)
    door = s.door()
    hashes = s.hashes(4)
    s.put(hashes)
    keys = s.physical(hashes)
    name_of = getattr(door, "name_of", str)
    check({name_of(key) for key in keys} <= set(door.raw_list()), "raw_list does not name what was stored")
    stored = [_raw(door, key) for key in keys]
    for key, data, page_hash in zip(keys, stored, hashes, strict=True):
        check(s.page(page_hash).data() in data, f"the page of {key!r} is not in what raw_get returns")
    check(door.raw_delete(keys[0]) and not door.raw_delete(keys[0]), "raw_delete does not say what it did")
    check_equal(s.read(hashes)[0], [Outcome.MISS, *[Outcome.HIT] * 3], "get after one page was removed")
    door.raw_set(keys[0], stored[0])
    s.expect_hits(hashes)
    check(door.raw_get("no-such-namespace/x") is None, "raw_get of a missing key is not None")


def _raw(door: BackDoor, key: str) -> bytes:
    data = door.raw_get(key)
    check(data is not None, f"{key!r} was stored, but raw_get finds nothing")
    return data or b""


def _damaged(h: Harness, damages: list[Callable[[bytes], bytes]], expected: Outcome) -> None:
    """Damage one page in each way: the session answers `expected`, publishes nothing, and the next set heals."""
    for start in range(0, len(damages), _HEALS_AT_LEAST // 2):
        some = damages[start : start + _HEALS_AT_LEAST // 2]
        s = session_on(h)
        door = s.door()
        hashes = s.hashes(len(some) + 1, start=1000 * start)
        check(all(s.put(hashes)), "session.set failed")
        for key, damage in zip(s.physical(hashes[:-1]), some, strict=True):
            whole = _raw(door, key)
            nothing = b"" if getattr(door, "empty_objects", True) else whole[:1]
            door.raw_set(key, damage(whole) or nothing)
        healed = _judge_and_heal(h, s, hashes[:-1], expected)
        s.expect_hits(hashes if healed else hashes[-1:])
        s.session.close()


def _judge_and_heal(h: Harness, s: Opened, hashes: list[str], expected: Outcome) -> bool:
    """Whether the pages were healed: what can neither be replaced nor removed stays poisoned."""
    count = len(hashes)
    check_equal(s.read(hashes)[0], [expected] * count, f"get of {count} damaged pages")
    counted = s.session.ledger.outcomes("get").get(expected.value, 0)
    check(counted >= count, f"{count} damaged pages were read, {counted} were counted")
    check_equal(s.session.exists(hashes), 0, "exists of pages that this session knows to be damaged")
    if not h.capabilities.replace and h.capabilities.delete != "immediate":
        check_equal(s.read(hashes)[0], [expected] * count, "get of damaged pages that cannot be healed")
        return False
    healed = s.put(hashes)
    check(all(healed), f"the set after the damage answered {[o.name for o in healed]}")
    check_equal(s.session.ledger.count("heals"), count, "heals counted")
    check_equal(s.session.exists(hashes), count, "exists after healing")
    s.expect_hits(hashes)
    return True


def _flip(at: int) -> Callable[[bytes], bytes]:
    def damage(data: bytes) -> bytes:
        changed = bytearray(data)
        changed[at] ^= 1 << (at % 8)
        return bytes(changed)

    return damage


@case("hostile", "seal, damage and healing", rounds=1)
def a_flipped_bit_is_a_miss_and_heals(h: Harness) -> None:
    """One bit in any field of the seal, or in the payload: CORRUPT, counted, healed by a set."""
    fields = (0, 7, 8, 10, 11, 12, 16, 23, 24, 39, 40, 47, 48, 55, 56, 63)
    payload = (h.stride, h.stride + 100, h.stride + 511, -2, -1)
    _damaged(h, [_flip(at) for at in (*fields, *payload)], Outcome.CORRUPT)


@case("hostile", "lengths, damage and healing", rounds=1)
def a_truncated_page_is_a_miss_and_heals(h: Harness) -> None:
    """A page cut at any place, also to nothing, also by one byte: CORRUPT, never a HIT, healed by a set."""
    cuts = (0, 1, 8, 63, h.stride, h.stride + 1)
    damages: list[Callable[[bytes], bytes]] = [lambda data, n=n: data[:n] for n in cuts]  # type: ignore[misc]
    _damaged(h, [*damages, lambda data: data[:-1], lambda data: data[: len(data) // 2]], Outcome.CORRUPT)


@case("hostile", "lengths, damage and healing", rounds=1)
def a_page_that_grew_is_a_miss_and_heals(h: Harness) -> None:
    """A page with bytes behind it, one, many, or itself again: CORRUPT, healed by a set."""
    _damaged(h, [lambda d: d + b"\0", lambda d: d + b"\xff" * 5000, lambda d: d + d], Outcome.CORRUPT)


@case("hostile", "damage and healing", rounds=1)
def zeros_in_place_of_a_page_are_a_miss_and_heal(h: Harness) -> None:
    """Zeros from some place on, as after a power cut, or throughout: CORRUPT, healed by a set."""
    cuts = (0, h.stride, h.stride + 256)
    _damaged(
        h,
        [lambda data, n=n: data[:n] + bytes(len(data) - n) for n in cuts],  # type: ignore[misc]
        Outcome.CORRUPT,
    )


@case("hostile", "seal, damage and healing")
def a_foreign_page_is_a_miss_and_stays(h: Harness) -> None:
    """A whole, sealed page of another key or namespace is FOREIGN: a miss, and never removed or replaced."""
    s = session_on(h)
    door = s.door()
    hashes = s.hashes(4)
    s.put(hashes)
    keys = s.physical(hashes)
    strange = session_on(h, identity=identity_of(h, tenant="another"))
    strange.put(hashes)
    theirs = h.back_door(strange.backend)
    foreign = {keys[0]: _raw(door, keys[3]), keys[1]: _raw(theirs, strange.physical(hashes)[1])}
    for key, data in foreign.items():
        door.raw_set(key, data)
    outcomes, _ = s.read(hashes)
    check_equal(outcomes, [Outcome.FOREIGN] * 2 + [Outcome.HIT] * 2, "get of two foreign pages and two good ones")
    check_equal(s.session.ledger.count("foreign"), 2, "foreign pages counted")
    check_equal(s.session.exists(hashes), 0, "exists, which stops before a page known to be foreign")
    s.put(hashes)
    s.read(hashes)
    for key, data in foreign.items():
        check_bytes(_raw(door, key), data, f"the foreign page under {key!r} after get and set")
    s.expect_hits(hashes[2:])


@case("hostile", "a failing store costs recomputation")
def a_page_that_vanished_is_a_miss(h: Harness) -> None:
    """Removed behind the back between exists and get: MISS, its neighbours are right, and it can be set again."""
    s = session_on(h)
    door = s.door()
    hashes = s.hashes(6)
    s.put(hashes)
    check_equal(s.session.exists(hashes), 6, "exists before the pages vanish")
    for key in s.physical(hashes)[1::2]:
        check(door.raw_delete(key), "raw_delete found nothing")
    expected = [Outcome.HIT, Outcome.MISS] * 3
    check_equal(s.read(hashes)[0], expected, "get after every second page vanished")
    check_equal(s.session.exists(hashes), 1, "exists after every second page vanished")
    check(all(s.put(hashes[1::2])), "set of pages that vanished")
    s.expect_hits(hashes)


@case("hostile", "a failing store costs recomputation")
def a_stale_exists_costs_a_miss(h: Harness) -> None:
    """A store whose exists says yes to everything: get tells the truth."""
    s = session_on(h, wrap=Boasting)
    hashes = s.hashes(8)
    s.put(hashes[::2])
    check_equal(s.session.exists(hashes), 8, "exists of the boasting store")
    outcomes, pages = s.read(hashes)
    check_equal(outcomes, [Outcome.HIT, Outcome.MISS] * 4, "get behind a boasting exists")
    if h.capabilities.clean_miss:
        check(all(page.is_poison() for page in pages[1::2]), "a missed destination was written to")
    s.expect_hits(hashes[::2])


@case("hostile", "damage and healing", rounds=1)
def a_reader_with_bad_memory_does_not_empty_the_store(h: Harness) -> None:
    """Where every read is damaged on the way, at most the budget is healed; then the rest is left as it is."""

    def spoil(key: str, page: Page) -> None:
        page[-1][-1:] = bytes([page[-1][-1] ^ 1])

    s = session_on(h, wrap=lambda backend: Damaging(backend, spoil), settings=SessionSettings(timeout=h.patience))
    door = s.door()
    hashes = s.hashes(60)
    s.put(hashes)
    keys = s.physical(hashes)
    before = {key: _raw(door, key) for key in keys}
    check_equal(s.read(hashes)[0], [Outcome.CORRUPT] * 60, "get through a reader with bad memory")
    s.put(hashes, version=1)
    changed = sum(door.raw_get(key) != before[key] for key in keys)
    check(changed <= _HEALS_AT_LEAST, f"{changed} of 60 good pages were replaced; the budget is {_HEALS_AT_LEAST}")
    check(all(door.raw_get(key) is not None for key in keys), "good pages were removed")
    if h.capabilities.replace or h.capabilities.delete == "immediate":
        check(not s.session.healthy(), "the session does not say that something is wrong")
        check_equal(set(s.read(hashes[:3])[0]), {Outcome.UNAVAILABLE}, "reads after the budget was used up")


@case("hostile", "damage and healing")
def a_read_error_that_passes_is_no_damage(h: Harness) -> None:
    """A page that is wrong once and right when it is read again is a HIT, and is not replaced."""
    spoilt: set[str] = set()

    def spoil(key: str, page: Page) -> None:
        if key not in spoilt:
            spoilt.add(key)
            page[-1][:1] = bytes([page[-1][0] ^ 0x80])

    s = session_on(h, wrap=lambda backend: Damaging(backend, spoil))
    hashes = s.hashes(5)
    s.put(hashes)
    s.expect_hits(hashes)
    check_equal(s.session.ledger.count("retries"), 5, "pages that were read once more")
    check_equal(s.session.ledger.count("heals"), 0, "heals of pages that are good")
