"""Damaged pages: never returned, read twice, poisoned, healed within a budget. Foreign pages: left alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from hicache_core.clock import ManualClock
from hicache_core.plugin.spec import hookimpl
from hicache_core.seal import Sealer
from hicache_core.storage import SessionSettings
from hicache_core.storage.damage import Damage
from hicache_core.storage.memory import CAPABILITIES, MemoryBackend, MemoryStore
from hicache_core.types import Capabilities, IoContext, Outcome, Page


def keys_of(session: Any, hashes: Sequence[str]) -> list[str]:
    return [f"{session.namespace}/{h}.kv.l0-2h0-2" for h in hashes]


@pytest.mark.parametrize("at", [0, 8, 16, 24, 40, 48, 56, 63, 64, 200, -1])
def test_any_bit_that_changed_is_corrupt_poisoned_and_healed(kit: Any, at: int) -> None:
    session, store = kit.memory()
    hashes = kit.hashes(4)
    session.set(hashes, kit.sources(4))
    key = keys_of(session, hashes)[2]
    data = bytearray(store.pages[key][0])
    data[at] ^= 4
    store.pages[key] = (bytes(data), 0.0)
    outcomes = session.get(hashes, kit.rooms(4))
    assert outcomes == [Outcome.HIT, Outcome.HIT, Outcome.CORRUPT, Outcome.HIT]
    assert session.ledger.count("retries") == 1
    assert session.ledger.count("poisoned") == 1
    answer = session.query(hashes)
    assert (answer.count, answer.reason) == (2, "poisoned")
    assert session.contains(hashes) == [True, True, False, True]
    assert session.set(hashes, kit.sources(4)) == [Outcome.EXISTS, Outcome.EXISTS, Outcome.STORED, Outcome.EXISTS]
    assert session.ledger.count("heals") == 1
    assert session.query(hashes).count == 4
    rooms = kit.rooms(4)
    assert session.get(hashes, rooms) == [Outcome.HIT] * 4
    assert [kit.bytes_of(room) for room in rooms] == kit.data(4)


@pytest.mark.parametrize("length", [0, 63, 64, 100, 319, 321, 700])
def test_a_page_of_another_length_is_corrupt(kit: Any, length: int) -> None:
    session, store = kit.memory()
    session.set(kit.hashes(1), kit.sources(1))
    key = keys_of(session, kit.hashes(1))[0]
    store.pages[key] = ((store.pages[key][0] * 3)[:length], 0.0)
    assert session.get(kit.hashes(1), kit.rooms(1)) == [Outcome.CORRUPT]
    assert session.query(kit.hashes(1)).reason == "poisoned"


class Flickering(MemoryBackend):
    """Bad memory: the first read of each page comes out wrong."""

    def __init__(self) -> None:
        super().__init__(MemoryStore(), None)
        self.seen: set[str] = set()

    @hookimpl
    def batch_get(self, keys: Sequence[str], pages: Sequence[Page], ctx: IoContext) -> list[Outcome]:
        outcomes = super().batch_get(keys, pages, ctx)
        for key, page in zip(keys, pages, strict=True):
            if key not in self.seen:
                self.seen.add(key)
                page[-1][0] ^= 0xFF
        return outcomes


def test_a_second_read_that_is_right_is_a_hit(kit: Any) -> None:
    session = kit.open(Flickering(), CAPABILITIES)
    session.set(kit.hashes(3), kit.sources(3))
    rooms = kit.rooms(3)
    assert session.get(kit.hashes(3), rooms) == [Outcome.HIT] * 3
    assert [kit.bytes_of(room) for room in rooms] == kit.data(3)
    assert session.ledger.count("retries") == 3
    assert session.ledger.count("poisoned") == 0


def test_a_page_that_is_swapped_for_another_is_foreign_and_stays(kit: Any) -> None:
    session, store = kit.memory()
    hashes = kit.hashes(3)
    session.set(hashes, kit.sources(3))
    one, two, _ = keys_of(session, hashes)
    store.pages[two] = store.pages[one]
    assert session.get(hashes, kit.rooms(3)) == [Outcome.HIT, Outcome.FOREIGN, Outcome.HIT]
    answer = session.query(hashes)
    assert (answer.count, answer.reason) == (1, "foreign")
    kept = store.pages[two]
    for replace in (False, True):
        assert session.set(hashes, kit.sources(3), replace=replace)[1] is Outcome.FOREIGN
    assert store.pages[two] is kept  # not deleted, not replaced


def test_a_page_sealed_for_another_namespace_is_foreign(kit: Any) -> None:
    session, store = kit.memory()
    key = keys_of(session, kit.hashes(1))[0]
    seal, payload = memoryview(bytearray(64)), kit.data(1)[0]
    Sealer("0" * 32).stamp(key, [memoryview(payload)], seal)
    store.pages[key] = (bytes(seal) + payload, 0.0)
    assert session.get(kit.hashes(1), kit.rooms(1)) == [Outcome.FOREIGN]
    assert key in store.pages


def test_foreign_pages_do_not_count_as_damage(kit: Any) -> None:
    session, store = kit.memory()
    hashes = kit.hashes(40)
    session.set(hashes, kit.sources(40))
    keys = keys_of(session, hashes)
    for key in keys[1:]:
        store.pages[key] = store.pages[keys[0]]
    assert session.get(hashes, kit.rooms(40)).count(Outcome.FOREIGN) == 39
    assert session.ledger.count("retries") == 0
    assert session.status().damage.heals_this_minute == 0


class Careful(MemoryBackend):
    """Records what set and delete were told."""

    def __init__(self) -> None:
        super().__init__(MemoryStore(), None)
        self.told: list[tuple[str, int, bool]] = []

    @hookimpl
    def batch_set(self, keys: Sequence[str], pages: Sequence[Page], ctx: IoContext) -> list[Outcome]:
        self.told.append(("set", len(keys), ctx.replace))
        return super().batch_set(keys, pages, ctx)

    @hookimpl
    def delete(self, keys: Sequence[str]) -> list[Outcome]:
        self.told.append(("delete", len(keys), False))
        return super().delete(keys)


def damaged(kit: Any, backend: MemoryBackend, capabilities: Capabilities, **more: Any) -> tuple[Any, list[str]]:
    """A session in which the second of four pages is poisoned."""
    session = kit.open(backend, capabilities, **more)
    hashes = kit.hashes(4)
    session.set(hashes, kit.sources(4))
    key = keys_of(session, hashes)[1]
    backend.store.pages[key] = (b"?" * 320, 0.0)
    assert session.get(hashes, kit.rooms(4))[1] is Outcome.CORRUPT
    return session, hashes


def test_healing_is_a_call_of_its_own_with_replace(kit: Any) -> None:
    backend = Careful()
    session, hashes = damaged(kit, backend, CAPABILITIES)
    backend.told.clear()
    assert session.set(hashes, kit.sources(4))[1] is Outcome.STORED
    assert backend.told == [("set", 3, False), ("set", 1, True)]


def test_without_replace_healing_deletes_and_sets(kit: Any) -> None:
    backend = Careful()
    session, hashes = damaged(kit, backend, Capabilities(delete="immediate"))
    backend.told.clear()
    assert session.set(hashes, kit.sources(4))[1] is Outcome.STORED
    assert backend.told == [("set", 3, False), ("delete", 1, False), ("set", 1, False)]
    assert session.get(hashes, kit.rooms(4)) == [Outcome.HIT] * 4


@pytest.mark.parametrize("delete", ["none", "eventual"])
def test_a_store_that_can_do_neither_keeps_it_poisoned(kit: Any, delete: Any) -> None:
    backend = Careful()
    session, hashes = damaged(kit, backend, Capabilities(delete=delete))
    backend.told.clear()
    assert session.set(hashes, kit.sources(4))[1] is Outcome.CORRUPT
    assert backend.told == [("set", 3, False)]
    assert session.ledger.count("heals_impossible") == 1
    assert session.query(hashes).reason == "poisoned"


def test_healing_can_be_switched_off(kit: Any) -> None:
    session, hashes = damaged(kit, Careful(), CAPABILITIES, settings=SessionSettings(heal=False))
    assert session.set(hashes, kit.sources(4))[1] is Outcome.CORRUPT


def test_duplicates_in_a_batch_are_healed_and_counted_once(kit: Any) -> None:
    backend = Careful()
    session, hashes = damaged(kit, backend, CAPABILITIES)
    backend.told.clear()
    twice = [hashes[1], hashes[0], hashes[1]]
    sources = [kit.sources(1, 1)[0], kit.sources(1)[0], kit.sources(1, 1)[0]]
    assert session.set(twice, sources) == [Outcome.STORED, Outcome.EXISTS, Outcome.STORED]
    assert backend.told == [("set", 1, False), ("set", 1, True)]
    assert session.status().damage.heals_this_minute == 1


class Stubborn(Careful):
    """Claims to replace and does not."""

    @hookimpl
    def batch_set(self, keys: Sequence[str], pages: Sequence[Page], ctx: IoContext) -> list[Outcome]:
        ctx.replace = False
        return super().batch_set(keys, pages, ctx)


def test_a_heal_that_is_answered_exists_has_not_healed(kit: Any) -> None:
    session, hashes = damaged(kit, Stubborn(), CAPABILITIES)
    assert session.set(hashes, kit.sources(4))[1] is Outcome.CORRUPT
    assert session.query(hashes).reason == "poisoned"


def test_a_reader_with_bad_memory_does_not_empty_a_healthy_store(kit: Any) -> None:
    clock = ManualClock(1000.0)
    backend = Careful()
    session = kit.open(backend, CAPABILITIES, clock=clock)
    hashes = kit.hashes(40)
    session.set(hashes, kit.sources(40))
    for key in keys_of(session, hashes):
        backend.store.pages[key] = (b"?" * 320, 0.0)
    assert session.get(hashes, kit.rooms(40)) == [Outcome.CORRUPT] * 40
    outcomes = session.set(hashes, kit.sources(40))
    assert outcomes.count(Outcome.STORED) == 16
    assert outcomes.count(Outcome.CORRUPT) == 24
    assert session.ledger.count("heals_refused") == 24
    status = session.status()
    assert not status.healthy
    assert any("healed" in problem for problem in status.problems)
    assert session.query(hashes).reason in ("breaker_open", "poisoned")
    assert session.get(kit.hashes(1), kit.rooms(1)) == [Outcome.UNAVAILABLE]
    clock.advance(59)
    assert session.get(kit.hashes(1), kit.rooms(1)) == [Outcome.UNAVAILABLE]
    clock.advance(2)
    assert session.get(kit.hashes(1), kit.rooms(1)) == [Outcome.HIT]
    assert session.status().healthy
    assert session.set(hashes, kit.sources(40)).count(Outcome.CORRUPT) == 8  # the next minute's budget


def test_the_budget_grows_with_the_pages_read() -> None:
    damage = Damage(ManualClock())
    damage.pages_read(30_000)
    assert [damage.may_heal() for _ in range(31)] == [True] * 30 + [False]
    assert "30 pages were healed" in damage.refused


def test_a_good_read_delete_and_clear_lift_the_poison(kit: Any) -> None:
    for lift in ("get", "delete", "clear"):
        backend = Careful()
        session, hashes = damaged(kit, backend, CAPABILITIES)
        if lift == "get":  # somebody else healed it
            key = keys_of(session, hashes)[1]
            good, other = kit.memory()
            good.set(hashes, kit.sources(4))
            backend.store.pages[key] = other.pages[key]
            assert session.get(hashes, kit.rooms(4)) == [Outcome.HIT] * 4
        elif lift == "delete":
            assert session.delete([hashes[1]]) == [Outcome.HIT]
        else:
            assert session.clear() == 4
        assert session.status().damage.poisoned == 0


def test_a_poisoned_page_of_one_pool_does_not_poison_the_other(kit: Any) -> None:
    session, hashes = damaged(kit, Careful(), CAPABILITIES)
    session.set(hashes, kit.sources(4), pool="indexer")
    assert session.exists(hashes, pool="indexer") == 4


def test_remembered_keys_are_bounded() -> None:
    damage = Damage(ManualClock())
    damage.poison(str(i) for i in range((1 << 16) + 10))
    assert damage.status().poisoned == 1 << 16
    assert not damage.is_poisoned("3")
    assert damage.is_poisoned("65545")
