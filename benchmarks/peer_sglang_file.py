"""SGLang's file backend, timed on request. Runs in SGLang's own environment (`bench_file` starts it).

Reads lines `DIRECTORY PAGE_BYTES PAGES ROUND`; answers `SECONDS_SET SECONDS_GET SECONDS_EXISTS` for all pages of a
round together: fresh keys, as the controller's generic path hands them over. Whoever gave the directory
removes it.
"""

import sys
import time

import torch
from sglang.srt.mem_cache.hicache_storage import HiCacheFile, HiCacheStorageConfig

made = {}


def prepared(directory, nbytes, count):
    """A store, pages and targets, made once for a directory and size."""
    if (directory, nbytes) not in made:
        config = HiCacheStorageConfig(0, 1, 0, 1, 0, 1, False, False, True, "m")
        store = HiCacheFile(config, file_path=directory)
        pages = [torch.randint(0, 256, (nbytes,), dtype=torch.uint8) for _ in range(count)]
        made[directory, nbytes] = store, pages, [torch.zeros(nbytes, dtype=torch.uint8) for _ in pages]
    return made[directory, nbytes]


def run(directory, nbytes, count, turn):
    """One round."""
    store, pages, targets = prepared(directory, nbytes, count)
    keys = [f"{turn:032x}{number:032x}" for number in range(count)]
    t0 = time.perf_counter()
    assert store.batch_set(keys, pages)
    t1 = time.perf_counter()
    got = store.batch_get(keys, targets)
    t2 = time.perf_counter()
    assert store.batch_exists(keys) == count
    t3 = time.perf_counter()
    assert all(page is not None for page in got)
    assert all(map(torch.equal, targets, pages))
    for target in targets:
        target.zero_()
    return t1 - t0, t2 - t1, t3 - t2


print("ready", flush=True)
for line in sys.stdin:
    where, *numbers = line.split()
    print(*run(where, *map(int, numbers)), flush=True)
