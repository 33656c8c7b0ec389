"""Batches go to the index as JSON: what a key is made of, and how many there are, is of no matter to it."""

import sqlite3

import pytest
from hicache_hf3fs.index import batch
from hicache_hf3fs.index.interface import Placed
from hicache_hf3fs.index.sqlite_index import SqliteIndex
from hicache_hf3fs.root import open_private

from hicache_core.errors import OpenError

ODD = ['a"b', "a\\b", "a\x00b", "a\nb", "a", "", "{}", "a,b", "null", "1"]


@pytest.fixture
def index(tmp_path):
    opened = SqliteIndex(open_private("root", str(tmp_path / "i"), allow_symlink=False, create=True), max_size=None)
    yield opened
    opened.close()


def put(index, sizes):
    """Pages of these sizes by key; what commit said of them."""
    reservation = index.reserve(list(sizes), list(sizes.values()), replace=False, may_hollow=True)
    placed = [
        Placed(key, size, slot, size - 1) for (key, size), slot in zip(sizes.items(), reservation.slots, strict=True)
    ]
    return index.commit(placed, [], replace=False)


def test_keys_of_any_ascii_are_found_as_they_are(index):
    for key in ODD:
        if "\x00" not in key:  # no legal key; to SQLite a text ends there
            assert put(index, {key: 4096}) == [0]
            assert index.lookup([key]).rows[0] is not None
            assert index.delete([key]) == [True]
    put(index, {"a": 4096})
    found = index.lookup(ODD).rows
    assert [key for key, row in zip(ODD, found, strict=True) if row is not None] == ["a"]


def test_a_large_batch_of_several_sizes(index):
    sizes = {f"k{n}": 4096 * (1 + n % 3) for n in range(3000)}
    assert put(index, sizes) == [0] * 3000
    found = index.lookup([*sizes, *sizes]).rows
    assert [row.slot_bytes for row in found] == [*sizes.values()] * 2
    assert len({(row.slot_bytes, row.slot) for row in found}) == 3000
    assert index.still(-1, [row.id for row in found], []) == {row.id for row in found}
    totals = index.totals()
    assert (totals.pages, totals.slots_reserved, totals.slots_free) == (3000, 0, 0)
    assert all(index.delete(list(sizes)))
    assert index.totals().slots_free == 3000


def test_a_batch_of_which_one_page_is_there_already(index):
    first = index.reserve(["x", "y"], [4096, 4096], replace=False, may_hollow=True)
    assert put(index, {"y": 4096}) == [0]
    verdicts = index.commit(
        [Placed("x", 4096, first.slots[0], 9), Placed("y", 4096, first.slots[1], 9)], [], replace=False
    )
    assert verdicts == [0, -1]
    totals = index.totals()
    assert (totals.pages, totals.slots_reserved, totals.slots_free) == (2, 0, 1)


def test_a_sqlite_without_json_is_refused_with_the_mend():
    class Without:
        def execute(self, sql):
            raise sqlite3.OperationalError("no such function: json_array")

    with pytest.raises(OpenError, match=r"without JSON functions .*3\.38 or later"):
        batch.check_json(Without())
