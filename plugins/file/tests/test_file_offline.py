"""The tools that look into a root without opening it as a store."""

import os

import pytest
from hicache_file import offline
from hicache_file.options import FileOptions

from hicache_core.errors import OpenError


def test_pages_and_usage_of_a_root(store, root):
    store.set(*[store.key(n) for n in range(3)], store.key(0, "other"))
    os.utime(store.path(store.key(1)), (1000, 1000))
    found = {page.key: page for page in offline.pages(str(root))}
    assert set(found) == set(store.stored())
    page = found[store.key(1)]
    assert (page.nbytes, page.mtime_ns) == (1064, 1000 * 10**9)
    assert root / page.path == store.path(page.key)
    assert [p.key for p in offline.pages(str(root), "other")] == [store.key(0, "other")]
    usage = offline.usage(str(root))
    assert (usage.files, usage.bytes_stored) == (4, 4 * 1064)
    assert usage.bytes_allocated == store.allocated() == sum(usage.by_namespace.values())
    assert usage.oldest_use == 1000
    assert usage.newest_use > 1_000_000_000
    assert usage.account_files == store.backend.stats().files


def test_looking_makes_nothing(tmp_path):
    with pytest.raises(OpenError):
        list(offline.pages(str(tmp_path / "none")))
    usage = offline.usage(str(tmp_path))
    assert (usage.files, usage.account_files, usage.oldest_use) == (0, None, None)
    assert list(tmp_path.iterdir()) == []


def test_clean_removes_left_overs_and_evicts_down_to_the_cap(store, root):
    store.set(*[store.key(n) for n in range(10)])
    store.backend.close()
    dead = root / "+hicache" / "writers" / "0123456789abcdef"
    dead.mkdir()
    (dead / "0").write_bytes(b"half")
    stats = offline.clean(FileOptions(root=str(root), max_size=5 * 4096, eviction_ratio=1.0))
    assert stats.temporaries_cleaned == 1
    assert stats.files == len(list(offline.pages(str(root)))) == 5
    assert os.listdir(root / "+hicache" / "writers") == []
