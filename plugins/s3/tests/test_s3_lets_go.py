"""Pages are let go of when the call returns, not when the garbage collector comes."""

from __future__ import annotations

import gc
import mmap
from collections.abc import Iterator
from pathlib import Path

import pytest
from hicache_s3.backend import open_s3
from hicache_s3.options import S3Options

from hicache_core.types import IoContext, OpenContext, Outcome

NAMESPACE = "0123456789abcdef" * 2


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("without_collector")
def test_memory_can_be_unmapped_once_the_calls_have_returned(tmp_path: Path) -> None:
    backend = open_s3(S3Options(url=f"file://{tmp_path}/store"), OpenContext(namespace=NAMESPACE))
    memory = mmap.mmap(-1, 8 << 16)
    view = memoryview(memory)
    pages = [[view[i << 16 : (i + 1) << 16]] for i in range(8)]
    keys = [f"{NAMESPACE}/{i:064x}.kv.l0-1h0-1" for i in range(8)]
    assert set(backend.batch_set(keys, pages, IoContext())) <= {Outcome.STORED}
    assert set(backend.batch_get(keys, pages, IoContext())) == {Outcome.HIT}
    assert backend.batch_exists(keys, IoContext()) == 8
    backend.close()
    del view, pages
    memory.close()  # BufferError where somebody still holds a page
