"""Keys that want out, and things that someone else put into the root."""

import os

import pytest
from hicache_file.names import LEAVES, locate

from hicache_core.types import IoContext, Outcome

NS = "0123456789abcdef" * 2

BAD_KEYS = [
    "", ".", "..", "/", "/etc/passwd", "../escape", "a/../b", "a/./b", "a//b", "a/", "a/b/", "A/B", "a b", "a\0b",
    "a+b", "a/+", "+hicache/account", "+hicache/writers", "ключ", "a\n", "a" * 201, "a/" + "b" * 199,
    "\ud800", "~/x", "a\\b",
]  # fmt: skip


def inside(root):
    return sorted(str(p.relative_to(root)) for p in root.rglob("*"))


@pytest.mark.parametrize("bad", BAD_KEYS, ids=[ascii(k[:12]) for k in BAD_KEYS])
def test_an_illegal_key_touches_nothing(store, root, tmp_path, bad):
    before, outside = inside(root), sorted(os.listdir(tmp_path))
    assert store.set(bad) == [Outcome.REJECTED]
    assert store.set(bad, replace=True) == [Outcome.REJECTED]
    assert store.get(bad) == (Outcome.MISS, bytes(1000))
    assert store.backend.batch_exists([bad], IoContext()) == 0
    assert store.backend.batch_contains([bad], IoContext()) == [False]
    assert store.delete(bad) == [Outcome.MISS]
    assert inside(root) == before
    assert sorted(os.listdir(tmp_path)) == outside


@pytest.mark.parametrize("bad", ["", ".", "..", "a/b", "+hicache", "/", "A", "a\0"])
def test_clear_and_scan_of_an_illegal_namespace_touch_nothing(store, root, bad):
    store.set(store.key(1))
    before = inside(root)
    assert store.backend.clear(bad) == 0
    assert store.backend.scan(bad, None) == ([], None)
    assert inside(root) == before


def test_keys_that_are_prefixes_of_each_other_are_different_pages(store):
    keys = ["a", "a/b", "a/b/c", "a/b.c", "a/b-c", "b", "a/ab", ".a/.b", "a/00", "00/00"]
    for number, key in enumerate(keys):
        assert store.set(key, value=bytes([number]) * 10) == [Outcome.STORED]
    for number, key in enumerate(keys):
        assert store.get(key, 10) == (Outcome.HIT, bytes([number]) * 10)
    assert sorted(store.stored()) == sorted(keys)
    assert store.delete("a") == [Outcome.HIT]
    assert store.get("a/b", 10)[0] is Outcome.HIT
    assert store.backend.clear("a") == len([k for k in keys if k.startswith("a/")])


def test_a_link_in_a_pages_place_is_never_followed(store, tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(b"x" * 1064)
    store.set(store.key(1))
    path = store.path(store.key(1))
    path.unlink()
    path.symlink_to(secret)
    assert store.get(store.key(1)) == (Outcome.CORRUPT, bytes(1000))
    assert store.set(store.key(1), replace=True) == [Outcome.STORED]
    assert secret.read_bytes() == b"x" * 1064
    assert not path.is_symlink()
    path.unlink()
    path.symlink_to(secret)
    assert store.key(1) not in store.stored()
    assert store.delete(store.key(1)) == [Outcome.HIT]
    assert secret.exists()


@pytest.mark.parametrize("depth", [1, 2])
def test_a_link_in_a_directorys_place_is_never_followed(store, root, tmp_path, depth):
    namespace, leaf, _ = locate(store.key(1))
    outside = tmp_path / "outside"
    outside.mkdir()
    if depth == 1:
        (root / namespace).symlink_to(outside)
        (outside / LEAVES[leaf]).mkdir()
    else:
        (root / namespace).mkdir()
        (root / namespace / LEAVES[leaf]).symlink_to(outside)
    before = inside(outside)
    assert store.set(store.key(1)) == [Outcome.UNAVAILABLE]
    assert store.get(store.key(1))[0] is Outcome.MISS
    assert store.backend.batch_exists([store.key(1)], IoContext()) == 0
    assert store.delete(store.key(1)) == [Outcome.MISS]
    assert store.backend.clear(namespace) == 0
    assert store.stored() == []
    assert inside(outside) == before
    assert "no directory of this store" in store.backend.stats().last_error


@pytest.mark.parametrize("kind", ["fifo", "directory"])
def test_other_things_in_a_pages_place_are_damage_not_a_hang(store, kind):
    store.set(store.key(1), store.key(2))
    path = store.path(store.key(1))
    path.unlink()
    os.mkfifo(path) if kind == "fifo" else path.mkdir()
    assert store.get(store.key(1))[0] is Outcome.CORRUPT
    assert store.get(store.key(2))[0] is Outcome.HIT
    assert store.key(1) not in store.stored()
    assert store.delete(store.key(1), store.key(2)) == [
        Outcome.HIT if kind == "fifo" else Outcome.UNAVAILABLE,
        Outcome.HIT,
    ]


def test_a_root_that_is_moved_away_stays_the_store(store, root, tmp_path):
    store.set(store.key(1))
    root.rename(tmp_path / "moved")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    root.symlink_to(elsewhere)
    assert store.set(store.key(2)) == [Outcome.STORED]
    assert store.get(store.key(1))[0] is Outcome.HIT
    assert list(elsewhere.iterdir()) == []


def foreign(root):
    """Files and directories that are nobody's pages, in every place where one could lie."""
    _, leaf, name = locate(f"{NS}/{1:064x}.kv.l0-30h0-3")
    other_leaf = LEAVES[(leaf + 1) % 64]
    places = [
        "notes.txt", "README", "Namespace/00/x", f"{NS}/notes", f"{NS}/zz/a", f"{NS}/00/UPPER", f"{NS}/00/a b",
        f"{NS}/{other_leaf}/{name}", f"{NS}/{LEAVES[leaf]}/{name}.tmp~", f"{NS}/00/sub/deep", "+hicache/mine",
        "+hicache/writers/mine", "+hicache/writers/not-a-writer/0",
    ]  # fmt: skip
    for place in places:
        path = root / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(place)
    return {root / place: place for place in places}


def test_foreign_files_are_never_touched_nor_counted(open_store, root):
    first = open_store()
    first.set(first.key(1))
    files = foreign(root)
    allocated = sum(p.lstat().st_blocks * 512 for p in [first.path(first.key(1))])
    first.backend.close()
    store = open_store(max_size=16 * 4096)
    assert store.stored() == [store.key(1)]
    assert store.backend.stats().files == 1
    assert store.backend.stats().bytes_allocated == allocated
    for number in range(2, 60):
        store.set(store.key(number), value=b"x" * 4000)
    assert store.backend.stats().evictions > 30
    store.backend.clear(NS)
    assert store.stored() == []
    store.backend.close()
    assert {path: path.read_text() for path in files} == files
