"""What get promises: all bytes of exactly this page, or not a HIT."""

from __future__ import annotations

from hicache_conformance.casebook import case
from hicache_conformance.harness import Harness
from hicache_conformance.material import page_bytes
from hicache_conformance.verdict import check, check_bytes, check_equal
from hicache_core.types import Outcome


@case("core", "batch_set, batch_get")
def get_returns_the_bytes_that_were_set(h: Harness) -> None:
    """Every byte of every region comes back, for pages of one, two and many regions."""
    store = h.open()
    for n, regions in enumerate((1, 2, 3, 8, 64)):
        keys = h.keys(3, start=10 * n)
        shape = h.shape(regions, 256)
        h.store(store, keys, shape=shape)
        h.expect_hits(store, keys, shape=shape)


@case("core", "lengths")
def get_of_a_missing_key_is_a_miss(h: Harness) -> None:
    """A key that was never set answers MISS: no HIT, and no exception in place of an outcome."""
    store = h.open()
    h.expect_gone(store, h.keys(3))
    h.store(store, [h.key(50)])
    h.expect_gone(store, h.keys(3))


@case("core", "lengths: clean_miss")
def a_miss_leaves_the_destination_alone(h: Harness) -> None:
    """With clean_miss, a poisoned (0xAA) destination is unchanged on MISS; without, its neighbours are right."""
    store = h.open()
    keys = h.keys(9)
    h.store(store, keys[::2])
    pages = [h.blank() for _ in keys]
    outcomes = store.get(keys, pages)
    for i, (key, page, outcome) in enumerate(zip(keys, pages, outcomes, strict=True)):
        if i % 2 == 0:
            check_equal(outcome, Outcome.HIT, f"get of the stored key {key!r} between missing ones")
            check_bytes(page.data(), page_bytes(key, page.nbytes), f"bytes of {key!r} between missing ones")
        else:
            check_equal(outcome, Outcome.MISS, f"get of the missing key {key!r}")
            if h.capabilities.clean_miss:
                check(page.is_poison(), f"clean_miss is declared, but the MISS of {key!r} changed its destination")


@case("core", "lengths")
def a_shorter_stored_page_is_corrupt(h: Harness) -> None:
    """A page shorter than the buffers is CORRUPT, never a HIT; with variable_length, a HIT that tells its length."""
    store = h.open()
    key, other = h.keys(2)
    unit = max(1, h.capabilities.alignment)
    written, asked = (h.stride, 4 * unit), (h.stride, 8 * unit)
    h.store(store, [key, other], shape=written)
    lengths = [0, 0]
    pages = [h.blank(asked), h.blank(written)]
    outcomes = store.get([key, other], pages, lengths=lengths)
    if h.capabilities.variable_length:
        check_equal(outcomes[0], Outcome.HIT, "get into larger buffers with variable_length")
        check_equal(lengths[0], sum(written), "the true length in ctx.lengths")
        check_bytes(pages[0].data()[: sum(written)], page_bytes(key, sum(written)), "bytes of the shorter page")
    else:
        check_equal(outcomes[0], Outcome.CORRUPT, f"get of {sum(written)} stored bytes into {sum(asked)}")
    check_equal(outcomes[1], Outcome.HIT, "get of its neighbour, whose length is right")
    check_bytes(pages[1].data(), page_bytes(other, sum(written)), "bytes of the neighbour")


@case("core", "lengths")
def a_longer_stored_page_is_corrupt(h: Harness) -> None:
    """A stored page longer than the buffers is CORRUPT, never a HIT of its beginning."""
    store = h.open()
    key, other = h.keys(2)
    unit = max(1, h.capabilities.alignment)
    written, asked = (h.stride, 8 * unit), (h.stride, 4 * unit)
    h.store(store, [key, other], shape=written)
    pages = [h.blank(asked), h.blank(written)]
    outcomes = store.get([key, other], pages)
    check_equal(outcomes[0], Outcome.CORRUPT, f"get of {sum(written)} stored bytes into {sum(asked)}")
    check_equal(outcomes[1], Outcome.HIT, "get of its neighbour, whose length is right")
    check_bytes(pages[1].data(), page_bytes(other, sum(written)), "bytes of the neighbour")


@case("core", "lengths")
def a_wrong_length_leaves_the_store_as_it_was(h: Harness) -> None:
    """After a get with wrong buffers the page is still there for the right ones: the reader may be at fault."""
    store = h.open()
    key = h.key()
    shape = h.shape(2, 512)
    h.store(store, [key], shape=shape)
    outcome, _ = h.fetch(store, key, (h.stride, max(1, h.capabilities.alignment)))
    check(outcome is not Outcome.HIT, "get of a page into buffers of another length is a HIT")
    check_equal(store.exists([key]), 1, "exists of the page after it")
    h.expect_hits(store, [key], shape=shape)


@case("core", "batch_set")
def region_boundaries_do_not_matter(h: Harness) -> None:
    """The object is the concatenation of the buffers: other boundaries, the same sum, read the same bytes."""
    store = h.open()
    key = h.key()
    unit = max(1, h.capabilities.alignment)
    h.store(store, [key], shape=(h.stride, 6 * unit, 2 * unit))
    for shape in (
        (h.stride, 8 * unit),
        (h.stride, 2 * unit, 6 * unit),
        (h.stride, *[unit] * 8),
        (h.stride + 8 * unit,),
    ):
        h.expect_hits(store, [key], shape=shape)


@case("core", "batch_set", rounds=1)
def a_page_of_many_regions_comes_back_whole(h: Harness) -> None:
    """More regions than one system call takes (1,024) are still one page."""
    store = h.open()
    keys = h.keys(2)
    shape = (h.stride, *[max(8, h.capabilities.alignment)] * 2500)
    limit = h.capabilities.max_page_bytes
    if limit is not None and sum(shape) > limit:
        shape = shape[: 1 + (limit - shape[0]) // shape[1]]
    h.store(store, keys, shape=shape)
    h.expect_hits(store, keys, shape=shape)


@case("core", "batch_get")
def bytes_mean_nothing_to_the_store(h: Harness) -> None:
    """Pages of zeros, of 0xFF, of text, line ends and pickles come back as they were."""
    store = h.open()
    shape = h.shape(1, 512)
    patterns = (b"\0", b"\xff", b"\n", b"\r\n", b"\x1a", b"HICSEAL\0", b"\x80\x04K\x01.", b"\xc3\x28", b"{}", b"\xaa")
    for n, pattern in enumerate(patterns):
        key, data = h.key(n), (pattern * sum(shape))[: sum(shape)]
        page, back = h.lend(key, shape), h.blank(shape, fill=0x55)
        page.write(data)
        check(store.set([key], [page])[0], f"set of a page of {pattern!r} failed")
        check_equal(store.get([key], [back]), [Outcome.HIT], f"get of a page of {pattern!r}")
        check_bytes(back.data(), data, f"a page of {pattern!r}")


@case("core", "threads and lent memory")
def a_call_touches_no_memory_after_it_returned(h: Harness) -> None:
    """Once get has returned it writes no more into the buffers; once set has returned it reads no more from them."""
    store = h.open()
    keys = h.keys(16)
    shape = h.shape(2, 2048)
    pages = [h.lend(key, shape) for key in keys]
    check(all(store.set(keys, pages)), "set of 16 new keys failed")
    for page in pages:
        page.write(b"\x77" * page.nbytes)
    h.expect_hits(store, keys, shape=shape)
    read = [h.blank(shape) for _ in keys]
    store.get(keys, read)
    for page in read:
        page.write(b"\x5a" * page.nbytes)
    h.expect_hits(store, keys, shape=shape)
    h.let_threads_end(store)
    for key, page in zip(keys, read, strict=True):
        check_bytes(page.data(), b"\x5a" * page.nbytes, f"the buffers of {key!r} after get had returned")


@case("core", "batch_set")
def set_does_not_change_its_source(h: Harness) -> None:
    """The source of a set is the live host page of the engine: not a byte of it changes."""
    store = h.open()
    keys = h.keys(8)
    shape = h.shape(3, 700)
    pages = [h.lend(key, shape) for key in keys]
    for _ in range(2):
        store.set(keys, pages)
        for key, page in zip(keys, pages, strict=True):
            check_bytes(page.data(), page_bytes(key, page.nbytes), f"source of the set of {key!r}")
            check(page.canaries_intact(), f"set wrote beside the source of {key!r}")
