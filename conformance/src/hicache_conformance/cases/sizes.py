"""Sizes of pages: from a byte to the declared limit."""

from __future__ import annotations

from hicache_conformance.casebook import case
from hicache_conformance.harness import Harness
from hicache_conformance.verdict import check, check_equal
from hicache_core.types import Outcome


@case("core", "lengths", rounds=1)
def pages_of_every_size_come_back(h: Harness) -> None:
    """From one byte beside the seal to 8 MiB (or the declared limit), odd sizes too where alignment allows."""
    store = h.open()
    limit = h.capabilities.max_page_bytes
    sizes = (1, 2, 63, 65, 511, 512, 513, 4095, 4096, 4097, 65536 + 1, 1 << 20, (1 << 20) + 4096, 8 << 20)
    for n, size in enumerate(sizes):
        shape = (h.stride, h.rounded(size))
        if limit is not None and sum(shape) > limit:
            break
        h.store(store, [h.key(n)], shape=shape)
        h.expect_hits(store, [h.key(n)], shape=shape)
        check_equal(store.exists([h.key(n)]), 1, f"exists of a page of {size} bytes")


@case("core", "max_page_bytes", rounds=1)
def the_largest_page_is_kept_and_a_larger_one_refused(h: Harness) -> None:
    """A page of max_page_bytes is stored; a larger one REJECTED without a trace. Undeclared: 24 MiB is stored."""
    store = h.open()
    key, over, neighbour = h.keys(3)
    limit = h.capabilities.max_page_bytes
    if limit is None:
        shape: tuple[int, ...] = (h.stride, *[h.rounded(6 << 20)] * 4)
        h.store(store, [key], shape=shape)
        h.expect_hits(store, [key], shape=shape)
        return
    unit = max(1, h.capabilities.alignment)
    largest = (h.stride, (limit - h.stride) // unit * unit)
    h.store(store, [key], shape=largest)
    h.expect_hits(store, [key], shape=largest)
    larger = (h.stride, (limit - h.stride) // unit * unit + unit)
    small = h.shape(1, 64)
    outcomes = store.set([over, neighbour], [h.lend(over, larger), h.lend(neighbour, small)])
    check_equal(outcomes[0], Outcome.REJECTED, f"set of a page of {sum(larger)} bytes, above max_page_bytes {limit}")
    check(outcomes[1], "set of a small page beside one that is too large")
    h.expect_gone(store, [over], shape=larger)
    h.expect_hits(store, [neighbour], shape=small)
