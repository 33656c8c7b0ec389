"""Calls from several threads: nothing is torn, nothing hangs, one writer wins."""

from __future__ import annotations

import threading
from collections.abc import Callable

from hicache_conformance.casebook import case
from hicache_conformance.harness import Harness
from hicache_conformance.material import page_bytes
from hicache_conformance.verdict import check, check_bytes, check_equal
from hicache_core.types import Outcome

_WRITERS = 4


@case("core", "threads and lent memory")
def threads_on_different_keys_do_not_disturb_each_other(h: Harness) -> None:
    """Four threads set, ask and get, each its own keys, in batches; every page comes back right."""
    store = h.open()

    def body(n: int) -> Callable[[], None]:
        def work() -> None:
            for start in range(0, 30, 6):
                keys = h.keys(6, start=1000 * n + start)
                h.store(store, keys)
                check_equal(store.exists(keys), 6, "exists of keys that this thread stored")
                h.expect_hits(store, keys)

        return work

    h.together(*(body(n) for n in range(_WRITERS)))


@case("core", "atomic publication, threads and lent memory")
def threads_on_one_key_leave_one_whole_page(h: Harness) -> None:
    """Four threads set different bytes under one key at once: one wins, whole; reports_exists: one STORED."""
    store = h.open()
    shape = h.shape(4, 8 << 10)
    for turn in range(8):
        key = h.key(turn)
        outcomes: list[Outcome | None] = [None] * _WRITERS

        def write(version: int, key: str = key, outcomes: list[Outcome | None] = outcomes) -> None:
            outcomes[version] = h.put(store, [key], version=version, shape=shape)[0]

        h.together(*(lambda version=version: write(version) for version in range(_WRITERS)))
        check(all(outcomes), f"setting one key from four threads answered {[o and o.name for o in outcomes]}")
        outcome, data = h.fetch(store, key, shape)
        check_equal(outcome, Outcome.HIT, "get of a key that four threads set")
        winners = [v for v in range(_WRITERS) if data == page_bytes(key, len(data), v)]
        check(winners, "a key that four threads set holds a mixture of pages")
        if h.capabilities.reports_exists:
            stored = [v for v, o in enumerate(outcomes) if o is Outcome.STORED]
            check_equal(stored, winners, "writers that were told STORED, against the page that stayed")


@case("core", "atomic publication")
def a_reader_sees_all_of_a_page_or_nothing(h: Harness) -> None:
    """While pages are being published, a reader gets MISS or all their bytes; what exists vouched for can be read."""
    store = h.open()
    keys = h.keys(12)
    shape = h.shape(4, 32 << 10)
    written = threading.Event()

    def write() -> None:
        try:
            for key in keys:
                h.store(store, [key], shape=shape)
        finally:
            written.set()

    def read() -> None:
        page = h.blank(shape)
        while True:
            last = written.is_set()
            for key in keys:
                _whole_or_absent(store.exists([key]) == 1, key, store.get([key], [page])[0], page.data())
            if last:
                return

    h.together(write, read, read)


def _whole_or_absent(promised: bool, key: str, outcome: Outcome, data: bytes, versions: int = 1) -> None:
    if outcome is Outcome.HIT:
        if not any(data == page_bytes(key, len(data), v) for v in range(versions)):
            check_bytes(data, page_bytes(key, len(data)), f"bytes of {key!r} read while it was being set")
        return
    check_equal(outcome, Outcome.MISS, f"get of {key!r} while it is being set")
    check(not promised, f"exists promised {key!r}, and the get after it missed, though nothing removes keys")


@case("core", "atomic publication: replace")
def a_reader_sees_the_old_page_or_the_new_one(h: Harness) -> None:
    """While a page is being replaced a reader gets the old bytes or the new ones, never a mixture, never a MISS.

    Without the capability a set of an existing key is watched instead: the old bytes stay readable all the time.
    """
    store = h.open()
    replace = h.capabilities.replace
    keys = h.keys(2)
    shape = h.shape(4, 32 << 10)
    h.store(store, keys, shape=shape)
    written = threading.Event()

    def write() -> None:
        try:
            for version in range(1, 13):
                check(all(h.put(store, keys, version=version % 2, shape=shape, replace=replace)), "the set failed")
        finally:
            written.set()

    def read() -> None:
        page = h.blank(shape)
        while True:
            last = written.is_set()
            for key in keys:
                outcome = store.get([key], [page])[0]
                check_equal(outcome, Outcome.HIT, f"get of the stored key {key!r} while it is set again")
                _whole_or_absent(True, key, outcome, page.data(), versions=2 if replace else 1)
            if last:
                return

    h.together(write, read, read)


@case("core", "threads and lent memory")
def crossing_batches_do_not_deadlock(h: Harness) -> None:
    """Two threads that name the same keys in opposite orders both come back."""
    store = h.open()
    keys = h.keys(16)

    def body(mine: list[str]) -> Callable[[], None]:
        def work() -> None:
            for _ in range(6):
                check(all(h.put(store, mine, replace=h.capabilities.replace)), "set in crossing batches failed")
                h.expect_hits(store, mine)
                store.exists(mine)

        return work

    h.together(body(keys), body(keys[::-1]), body(keys[8:] + keys[:8]))


@case("core", "atomic publication, threads and lent memory")
def removing_while_reading_tears_nothing(h: Harness) -> None:
    """While one thread deletes and sets keys again, readers get all bytes or MISS."""
    store = h.open()
    keys = h.keys(4)
    shape = h.shape(2, 16 << 10)
    h.store(store, keys, shape=shape)
    done = threading.Event()

    def remove() -> None:
        try:
            for _ in range(8):
                store.delete(keys)
                h.put(store, keys, shape=shape)
        finally:
            done.set()

    def read() -> None:
        page = h.blank(shape)
        while True:
            last = done.is_set()
            for key in keys:
                _whole_or_absent(False, key, store.get([key], [page])[0], page.data())
            if last:
                return

    h.together(remove, read, read)


@case("core", "close")
def closing_while_others_call_does_not_hang(h: Harness) -> None:
    """close while calls are on their way: they end, with an answer or an error, and so does close."""
    store = h.open()
    keys = h.keys(8)
    h.store(store, keys)
    closed = threading.Event()

    def call() -> None:
        for _ in range(200):
            try:
                store.get(keys, [h.blank() for _ in keys])
            except AssertionError:
                if not closed.wait(h.patience):
                    raise
                return
            if closed.is_set():
                return

    def close() -> None:
        closed.set()
        store.close()

    h.together(call, call, close)
