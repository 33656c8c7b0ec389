"""An encrypting transform: what reaches the store is not the page."""

from __future__ import annotations

import numpy as np

from hicache_conformance.casebook import case
from hicache_conformance.harness import Harness
from hicache_conformance.material import Lent
from hicache_conformance.pools import WatchedPool
from hicache_conformance.proxy import Recording
from hicache_conformance.sessioning import Opened, session_on
from hicache_conformance.verdict import Skipped, check, check_equal
from hicache_conformance.xor import Xor
from hicache_core.types import Outcome, PoolName, PoolTransfer

_PLAIN = b"this text stands in every page and must never reach the store. "
_EACH = 5


@case("core", "layers of a session: transforms")
def plaintext_never_reaches_the_store(h: Harness) -> None:
    """With an XOR transform no plaintext is handed to the backend, by buffers, by v1 or by v2."""
    for key, in_place in ((0x5C, False), (0x3A, True)):
        s = session_on(h, wrap=Recording, transforms=[Xor(key, in_place)])
        _round_trip(h, s)
        check_equal(len(s.between.seen), 3 * _EACH, "pages that reached the backend")
        for stored, data in s.between.seen.items():
            check(_PLAIN[:24] not in data, f"plaintext was handed to the backend under {stored!r}")
        s.session.close()


@case("core", "layers of a session: transforms")
def plaintext_does_not_lie_in_the_store(h: Harness) -> None:
    """With an XOR transform and the store's own v1 and v2 hooks, no plaintext is to be found at the back door."""
    for key, in_place in ((0x5C, False), (0x3A, True)):
        s = session_on(h, transforms=[Xor(key, in_place)])
        _round_trip(h, s)
        s.session.close()


def _round_trip(h: Harness, s: Opened) -> None:
    """Write five pages each way, look behind, and read each of them another way."""
    hashes = s.hashes(3 * _EACH)
    first, second, third = (hashes[n : n + _EACH] for n in range(0, 3 * _EACH, _EACH))
    slots = np.arange(3 * _EACH)
    pool = s.pool(3 * _EACH)
    plain = (_PLAIN * (1 + pool.page_nbytes // len(_PLAIN)))[: pool.page_nbytes]
    for slot in slots.tolist():
        pool.view.set_from_flat_data_page(slot, plain)
    stored = s.session.set(first, [_page(h, pool, plain).buffers for _ in first])
    stored += s.session.set_v1(second, slots[_EACH : 2 * _EACH])
    stored += s.session.set_v2([PoolTransfer(PoolName.KV, third, slots[2 * _EACH :])])[PoolName.KV]
    check_equal(stored, [Outcome.STORED] * len(hashes), "set through the transform")
    check(all(pool.data(slot) == plain for slot in slots.tolist()), "the transform changed the engine's live page")
    _look_behind(h, s.physical(hashes), s.backend)
    pool.poison()
    found = s.session.get_v1(first, slots[:_EACH])
    found += s.session.get_v2([PoolTransfer(PoolName.KV, second, slots[_EACH : 2 * _EACH])])[PoolName.KV]
    pages = [_page(h, pool) for _ in third]
    found += s.session.get(third, [page.buffers for page in pages])
    check_equal(found, [Outcome.HIT] * len(hashes), "get through the transform")
    for n, data in enumerate([*map(pool.data, range(2 * _EACH)), *(page.data() for page in pages)]):
        check(data == plain, f"page {n} did not come back as it was")


def _page(h: Harness, pool: WatchedPool, plain: bytes | None = None) -> Lent:
    page = h.blank((pool.page_nbytes,))
    if plain is not None:
        page.write(plain)
    return page


def _look_behind(h: Harness, keys: list[str], backend: object) -> None:
    """At the back door, where the author offers one; the recording proxy has seen what was handed over."""
    try:
        door = h.back_door(backend)
    except Skipped:
        return
    for key in keys:
        data = door.raw_get(key)
        check(data is not None, f"{key!r} is not to be found at the back door")
        check(_PLAIN[:24] not in (data or b""), f"plaintext lies in the store under {key!r}")
