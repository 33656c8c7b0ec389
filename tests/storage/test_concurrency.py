"""Eight threads at one session, with and without faults: no wrong page, no lost count, no stuck thread."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest

from hicache_core.storage import open_session
from hicache_core.types import Outcome

THREADS, ROUNDS, KEYS = 8, 25, 12


def hammer(kit: Any, session: Any, seed: int, problems: list[str]) -> None:
    dice = random.Random(seed)
    hashes, data = kit.hashes(KEYS), kit.data(KEYS)
    try:
        for _ in range(ROUNDS):
            chosen = [dice.randrange(KEYS) for _ in range(dice.randrange(1, 6))]
            names = [hashes[i] for i in chosen]
            what = dice.choice(["set", "get", "exists", "replace", "delete", "submit"])
            if what in ("set", "replace"):
                session.set(names, [[data[i]] for i in chosen], replace=what == "replace")
            elif what == "exists":
                session.exists(names)
            elif what == "delete":
                session.delete(names)
            else:
                rooms = kit.rooms(len(chosen))
                handle = session.submit_get(names, rooms)
                if what == "submit" and dice.random() < 0.3:
                    handle.abandon()
                for i, room, outcome in zip(chosen, rooms, handle.result(), strict=True):
                    if outcome and kit.bytes_of(room) != data[i]:
                        problems.append(f"wrong bytes for page {i}")
                assert handle.returned.wait(kit.bound)
    except BaseException as error:  # noqa: BLE001 - told to the test, which fails
        problems.append(repr(error))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"flip": 0.2, "truncate": 0.2, "reorder": 0.2, "stale_exists": 0.2},
        {"fail": 0.2, "flip": 0.1},
        {"at": "set", "flip": 0.2, "truncate": 0.2, "reorder": 0.2},
    ],
)
def test_hammering(kit: Any, options: dict[str, Any]) -> None:
    session = open_session("fault", identity=kit.identity, options={"inner": "memory", "seed": 11, **options})
    problems: list[str] = []
    threads = [threading.Thread(target=hammer, args=(kit, session, i, problems)) for i in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(kit.bound)
    assert not any(thread.is_alive() for thread in threads)
    assert problems == []
    ledger = session.ledger.as_dict()
    assert ledger["violations"] == {}
    assert ledger["events"].get("abandoned", 0) == ledger["events"].get("returned_late", 0)
    assert all(ring.borrowed == 0 for ring in session._parts.rings)
    report = session.close(kit.bound)
    assert report.clean


def test_every_page_is_counted_once(kit: Any) -> None:
    session, _ = kit.memory()
    total = 40
    done = threading.Barrier(4)

    def read() -> None:
        done.wait(kit.bound)
        for _ in range(total):
            session.get(kit.hashes(3), kit.rooms(3))

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(kit.bound)
    assert session.ledger.outcomes("get") == {Outcome.MISS.value: 4 * total * 3}
