"""SGLang's file backend, timed on request. Runs in SGLang's own environment (`bench_file` starts it).

Reads lines `DIRECTORY PAGE_BYTES PAGES`; answers `SECONDS_SET SECONDS_GET SECONDS_EXISTS` for all pages together.
"""

import sys
import tempfile
import time

import torch
from sglang.srt.mem_cache.hicache_storage import HiCacheFile, HiCacheStorageConfig


def run(directory, nbytes, count):
    """One batch of fresh keys, as the controller's generic path hands them over."""
    config = HiCacheStorageConfig(0, 1, 0, 1, 0, 1, False, False, True, "m")
    with tempfile.TemporaryDirectory(dir=directory) as place:
        store = HiCacheFile(config, file_path=place)
        keys = [f"{number:064x}" for number in range(count)]
        pages = [torch.randint(0, 256, (nbytes,), dtype=torch.uint8) for _ in keys]
        targets = [torch.zeros(nbytes, dtype=torch.uint8) for _ in keys]
        t0 = time.perf_counter()
        assert store.batch_set(keys, pages)
        t1 = time.perf_counter()
        got = store.batch_get(keys, targets)
        t2 = time.perf_counter()
        assert store.batch_exists(keys) == count
        t3 = time.perf_counter()
        assert all(page is not None for page in got)
        assert torch.equal(targets[-1], pages[-1])
    return t1 - t0, t2 - t1, t3 - t2


print("ready", flush=True)
for line in sys.stdin:
    where, size, number = line.split()
    print(*run(where, int(size), int(number)), flush=True)
