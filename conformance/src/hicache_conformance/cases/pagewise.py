"""What hooks marked `pagewise` promise: a page is whole when it is verified, and not read before it is sealed."""

from __future__ import annotations

import numpy as np

from hicache_conformance.casebook import case
from hicache_conformance.cases.registration import Direct
from hicache_conformance.driver import Driver
from hicache_conformance.harness import Harness
from hicache_conformance.material import page_bytes
from hicache_conformance.verdict import CaseFailed, NotApplicable, check, check_bytes, check_equal, short
from hicache_core.storage.binding import HookBinding
from hicache_core.types import Outcome

_SHAPES = ((2, 512), (3, 70_000), (1, 600_000))
"""Regions of a page and the bytes of each; each is asked for in a batch of its own."""


def _only_marked(store: Driver, hook: str) -> None:
    if not HookBinding(store.backend).pagewise(hook):
        raise NotApplicable(f"{hook} is not marked pagewise")


class _NobodyWaits(Exception):
    """As the session's own, where the caller of a set has given up."""


def _what_cannot_be_sealed_is_not_stored(h: Harness, store: Driver) -> None:
    keys = h.keys(7, start=50)
    pages = [h.lend(key) for key in keys]

    def seal(index: int) -> None:
        if index >= 3:
            raise _NobodyWaits("nobody waits for this set any more")

    try:
        outcomes = store.set(keys, pages, seal_page=seal)
    except CaseFailed as failure:
        if failure.__cause__ is None:  # it answered, and wrongly
            raise
    else:
        check(not any(outcomes[3:]), f"pages whose ctx.seal_page raised were answered {short(outcomes[3:])}")
    h.expect_gone(store, keys[3:])
    check_equal(
        store.set(keys[3:], pages[3:]), [Outcome.STORED] * 4, "set of the keys whose ctx.seal_page had raised"
    )
    h.expect_hits(store, keys[3:])


@case("core", "batch_set, batch_set_v1: pagewise")
def a_page_is_sealed_before_it_is_read(h: Harness) -> None:
    """Bytes are there only once ctx.seal_page was called for the page: those are stored; nothing where it raises."""
    store = h.open()
    _only_marked(store, "batch_set")
    for turn, (regions, nbytes) in enumerate(_SHAPES):
        keys = h.keys(7, start=10 * turn)
        pages = [h.blank(h.shape(regions, nbytes)) for _ in keys]

        def seal(index: int, keys: list[str] = keys, pages: list = pages) -> None:  # type: ignore[type-arg]
            pages[index].write(page_bytes(keys[index], pages[index].nbytes))

        outcomes = store.set(keys, pages, seal_page=seal)
        check_equal(outcomes, [Outcome.STORED] * len(keys), "set of new keys")
        h.expect_hits(store, keys, shape=h.shape(regions, nbytes))
    _what_cannot_be_sealed_is_not_stored(h, store)
    if not store.has("batch_set_v1"):
        return
    direct = Direct(h)
    store, view = direct.store, direct.pool.view
    store.lend_pool(view)
    keys = h.keys(4, start=100)
    direct.pool.poison()
    outcomes = store.set_v1(
        keys, view, np.arange(4), direct.some_seals(4), seal_page=lambda index: direct.pool.fill(index, keys[index])
    )
    check_equal(outcomes, [Outcome.STORED] * 4, "set_v1 of new keys")
    direct.expect(keys, "after each page was filled when ctx.seal_page was called for it")


@case("core", "batch_get, batch_get_v1: pagewise")
def a_page_is_in_place_when_it_is_verified(h: Harness) -> None:
    """When ctx.verify_page was last called for a page that is a HIT it had all its bytes, and it kept them."""
    store = h.open()
    _only_marked(store, "batch_get")
    for turn, (regions, nbytes) in enumerate(_SHAPES):
        keys, shape = h.keys(7, start=10 * turn), h.shape(regions, nbytes)
        h.store(store, keys[::2], shape=shape)
        pages = [h.blank(shape) for _ in keys]
        seen: dict[int, bytes] = {}

        def verify(index: int, pages: list = pages, seen: dict[int, bytes] = seen) -> None:  # type: ignore[type-arg]
            seen[index] = pages[index].data()

        outcomes = store.get(keys, pages, verify_page=verify)
        check_equal(outcomes, [Outcome.HIT, Outcome.MISS] * 3 + [Outcome.HIT], "get of every second key")
        for index in range(0, 7, 2):
            what = f"page {index} of a batch, when it was verified"
            check(index in seen, f"ctx.verify_page was never called for page {index}, which is a HIT")
            check_bytes(seen[index], page_bytes(keys[index], pages[index].nbytes), what)
            check_bytes(pages[index].data(), seen[index], "the same page, when the call had returned")
    if not store.has("batch_get_v1"):
        return
    direct = Direct(h)
    direct.store.lend_pool(direct.pool.view)
    keys = h.keys(4, start=100)
    check_equal(direct.put(keys), [Outcome.STORED] * 4, "set_v1 of new keys")
    direct.pool.poison()
    whole: list[int] = []

    def verify_v1(index: int) -> None:
        direct.pool.expect(index, keys[index], "when it was verified")
        whole.append(index)

    seals = direct.some_seals(4)
    outcomes = direct.store.get_v1(keys, direct.pool.view, np.arange(4), seals, verify_page=verify_v1)
    check_equal(outcomes, [Outcome.HIT] * 4, "get_v1 of stored keys")
    check_equal(sorted(set(whole)), [0, 1, 2, 3], "pages for which ctx.verify_page was called")
    for index, key in enumerate(keys):
        direct.pool.expect(index, key, "when the call had returned")
