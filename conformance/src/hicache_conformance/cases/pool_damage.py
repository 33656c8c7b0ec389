"""Damage behind the back, met by v1 and v2: never a wrong page in a pool, and no prefix that needs one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hicache_conformance.casebook import case
from hicache_conformance.cases.hybrid import KV, SWA, TRAILING, Pools, ask
from hicache_conformance.cases.zero_copy import read, write
from hicache_conformance.harness import Harness
from hicache_conformance.sessioning import identity_of, session_on
from hicache_conformance.verdict import check, check_equal
from hicache_core.types import Outcome, PoolTransfer

_HIT, _CORRUPT, _FOREIGN = Outcome.HIT, Outcome.CORRUPT, Outcome.FOREIGN


def _flip_last(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


@case("hostile", "damage and healing: v1, v2")
def damage_is_seen_on_every_path(h: Harness) -> None:
    """A flipped bit, a cut, more bytes, zeros and another page's bytes, read by v1 and v2: CORRUPT or FOREIGN, the
    pages between them right, and the next set by that path heals what may be healed.
    """
    harms: list[Callable[[bytes], bytes]] = [
        _flip_last,
        lambda data: data[: len(data) // 2],
        lambda data: data + b"\0",
        lambda data: bytes(len(data)),
    ]
    for path in ("v1", "v2"):
        s = session_on(h, identity=identity_of(h, tenant=path))
        door = s.door()
        pool = s.pool(12)
        hashes = s.hashes(10)
        for slot, page_hash in enumerate(hashes):
            pool.fill(slot, page_hash)
        check(all(write(s, path, hashes, pool, np.arange(10))), f"set by {path}")
        keys = s.physical(hashes)
        for n, harm in enumerate(harms):
            door.raw_set(keys[2 * n], harm(door.raw_get(keys[2 * n]) or b""))
        door.raw_set(keys[8], door.raw_get(keys[9]) or b"")
        pool.poison()
        slots = np.array(h.rng.sample(range(12), 10), np.int64)
        expected = [_CORRUPT, _HIT, _CORRUPT, _HIT, _CORRUPT, _HIT, _CORRUPT, _HIT, _FOREIGN, _HIT]
        check_equal(read(s, path, hashes, pool, slots), expected, f"get by {path} of damaged pages between good ones")
        for n in range(1, 10, 2):
            pool.expect(int(slots[n]), hashes[n], f"a good page between damaged ones, by {path}")
        pool.expect_untouched(slots.tolist(), f"get by {path} of damaged pages")
        if h.capabilities.replace or h.capabilities.delete == "immediate":
            for slot, page_hash in enumerate(hashes):
                pool.fill(slot, page_hash)
            check(all(write(s, path, hashes[:8], pool, np.arange(8))), f"set by {path} over damaged pages")
            check_equal(read(s, path, hashes[:8], pool, np.arange(8)), [_HIT] * 8, f"get by {path} after healing")
        s.session.close()


@case("hostile", "damage and healing: batch_exists_v2")
def no_prefix_needs_a_damaged_page(h: Harness) -> None:
    """A page of a side pool that is known to be damaged: the prefixes that need it are not told, the others are; once
    it was set again, all are.
    """
    pools = Pools(h, 10, names=(KV, SWA))
    s, hashes = pools.s, pools.s.hashes(8)
    door = s.door()
    pools.store({KV: hashes, SWA: hashes})
    there = {KV: [True] * 8, SWA: [True] * 8}
    queries = [ask(SWA, hashes, TRAILING, 2)]
    pools.expect(hashes, queries, there, "before the damage")
    key = s.session.identity.key_schema().physical([hashes[4]], "swa")[0]
    door.raw_set(key, _flip_last(door.raw_get(key) or b""))
    transfer = PoolTransfer(SWA, hashes, np.arange(8))
    expected = [_CORRUPT if n == 4 else _HIT for n in range(8)]
    check_equal(s.session.get_v2([transfer])[SWA], expected, "get_v2 of a pool with a damaged page")
    pools.expect(hashes, queries, {**there, SWA: [n != 4 for n in range(8)]}, "page 4 of the side pool is damaged")
    if h.capabilities.replace or h.capabilities.delete == "immediate":
        pools.fill(SWA, hashes)
        check(all(s.session.set_v2([transfer])[SWA]), "set_v2 over a damaged page")
        pools.expect(hashes, queries, there, "after the page was set again")
