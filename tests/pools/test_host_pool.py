from __future__ import annotations

import ctypes

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hicache_core.errors import CapacityError, ConfigError, MisuseError
from hicache_core.pools import naive
from hicache_core.pools.geometry import KVGeometry
from hicache_core.pools.host import MHAHostPool, MLAHostPool, make_host_pool
from hicache_core.pools.layouts import LAYOUTS, pool_nbytes
from hicache_core.pools.memory import allocate_memory
from hicache_core.types import HostPoolView, PoolName

PAGES = 6


def random_bytes(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, count, dtype=np.uint8)


@pytest.fixture
def pool(geometry, layout):
    made = make_host_pool(geometry, layout, PAGES, huge_pages="off", threads=1)
    made.buffer[:] = random_bytes(made.nbytes)
    yield made
    made.close()


def test_generic_and_zero_copy_are_the_same_bytes(pool, geometry, layout):
    slots = np.array([4, 0, 5, 0])
    ptrs, sizes = pool.regions(slots)
    assert ptrs.dtype == sizes.dtype == np.int64
    assert ptrs.shape == sizes.shape
    assert (sizes.sum(axis=1) == pool.page_nbytes).all()
    for row, slot in enumerate(slots.tolist()):
        want = naive.flat_page(geometry, layout, PAGES, pool.buffer, slot)
        zero_copy = b"".join(
            ctypes.string_at(p, s) for p, s in zip(ptrs[row].tolist(), sizes[row].tolist(), strict=True)
        )
        buffers = b"".join(bytes(view) for view in pool.pages(slots)[row])
        assert pool.get_data_page(slot).tobytes() == zero_copy == buffers == want


def test_setting_a_page_touches_that_page_alone(pool, geometry, layout):
    pool.buffer[:] = 0xAA
    flat = random_bytes(pool.page_nbytes, 1)
    pool.set_from_flat_data_page(3, flat)
    assert pool.get_data_page(3).tobytes() == flat.tobytes()
    assert naive.flat_page(geometry, layout, PAGES, pool.buffer, 3) == flat.tobytes()
    pool.set_from_flat_data_page(3, b"\xaa" * pool.page_nbytes)
    assert (pool.buffer == 0xAA).all()


def test_buffers_are_writable_bytes_of_the_pool(pool):
    (page,) = pool.pages(np.array([2]))
    assert all(view.format == "B" and view.ndim == 1 and not view.readonly for view in page)
    for view in page:
        view[:] = bytes(len(view))
    assert not pool.get_data_page(2).any()
    assert pool.get_data_page(1).any()


def test_it_is_a_host_pool_view(pool, geometry, layout):
    assert isinstance(pool, HostPoolView)
    assert (pool.name, pool.layout, pool.page_size) == (PoolName.KV, layout, geometry.page_size)
    assert pool.owner is pool.memory
    assert pool.page_nbytes == geometry.page_nbytes


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_pages_come_out_as_they_went_in(data):
    kind = data.draw(st.sampled_from(["mha", "mla"]))
    layout = data.draw(st.sampled_from([name for name, info in LAYOUTS.items() if kind in info.kinds]))
    dtype = data.draw(st.sampled_from(["uint8", "bfloat16", "float32"]))
    size = data.draw(st.sampled_from([1, 2, 8]))
    layers = data.draw(st.integers(1, 4))
    if kind == "mha":
        dims = data.draw(st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(1, 9)))
        geometry = KVGeometry(kind, layers, dims[0], dims[1], v_head_dim=dims[2], dtype=dtype, page_size=size)
    else:
        dim = data.draw(st.integers(2, 9))
        rope = data.draw(st.integers(1, dim - 1))
        geometry = KVGeometry(kind, layers, 1, dim, rope_dim=rope, dtype=dtype, page_size=size)
    pages = data.draw(st.integers(1, 5))
    order = data.draw(st.permutations(range(pages)))
    memory = np.zeros(pool_nbytes(geometry, LAYOUTS[layout], pages), dtype=np.uint8)
    pool = make_host_pool(geometry, layout, pages, memory=memory)
    content = random_bytes(pages * pool.page_nbytes, 7).reshape(pages, -1)
    for slot in order:
        pool.set_from_flat_data_page(slot, content[slot])
    ptrs, sizes = pool.regions(np.array(order))
    for row, slot in enumerate(order):
        flat = pool.get_data_page(slot, out=np.empty(pool.page_nbytes, np.uint8))
        regions = b"".join(
            ctypes.string_at(p, s) for p, s in zip(ptrs[row].tolist(), sizes[row].tolist(), strict=True)
        )
        assert flat.tobytes() == regions == content[slot].tobytes()
    pool.check_integrity()


def test_parts_in_the_fields_shape():
    geometry = KVGeometry("mha", 3, 2, 8, dtype="float16", page_size=4)
    pool = make_host_pool(geometry, "page_first", 5, huge_pages="off")
    assert isinstance(pool, MHAHostPool)
    k = pool.k_bytes()
    assert k.shape == (20, 3, 2, 16)
    k[4:8] = 1  # the tokens of page 1
    assert pool.get_data_page(1).reshape(2, -1)[0].all()
    assert not pool.get_data_page(1).reshape(2, -1)[1].any()
    assert not pool.v_bytes().any()
    del k
    pool.close()


def test_memory_that_a_store_lends():
    geometry = KVGeometry("mla", 2, 1, 8, page_size=2)
    lent = bytearray(pool_nbytes(geometry, LAYOUTS["page_first"], 4) + 100)
    pool = make_host_pool(geometry, "page_first", 4, memory=memoryview(lent))
    assert isinstance(pool, MLAHostPool)
    pool.set_from_flat_data_page(1, b"\x01" * pool.page_nbytes)
    assert lent[pool.page_nbytes : 2 * pool.page_nbytes] == b"\x01" * pool.page_nbytes
    assert pool.memory is None
    with pytest.raises(ConfigError, match="the memory given has 100"):
        make_host_pool(geometry, "page_first", 4, memory=memoryview(bytearray(100)))
    with pytest.raises(ConfigError, match="writable"):
        make_host_pool(geometry, "page_first", 4, memory=memoryview(bytes(lent)))


def test_memory_of_an_own_mapping():
    geometry = KVGeometry("mla", 2, 1, 8, page_size=2)
    memory = allocate_memory(1 << 16, shared=True)
    pool = make_host_pool(geometry, "page_first", 4, memory=memory)
    assert pool.memory is memory
    pool.close()
    assert memory.closed


def test_what_is_refused_takes_no_memory(monkeypatch):
    def never(*args: object, **kwargs: object) -> None:
        raise AssertionError("memory was taken")

    monkeypatch.setattr("hicache_core.pools.host.allocate_memory", never)
    geometry = KVGeometry("mha", 30, 3, 64, page_size=16)
    with pytest.raises(CapacityError, match="fewer than 1,000,000,000 pages"):
        make_host_pool(geometry, "page_first", 10**9)
    with pytest.raises(ConfigError, match="MLA"):
        make_host_pool(geometry, "page_first_kv_split", 4)
    with pytest.raises(ConfigError, match="at least one page"):
        make_host_pool(geometry, "page_first", 0, memory=memoryview(bytearray(8)))


def test_misuse_is_told():
    geometry = KVGeometry("mla", 2, 1, 8, page_size=2)
    pool = make_host_pool(geometry, "page_first", 4, huge_pages="off")
    with pytest.raises(MisuseError, match="4 pages"):
        pool.regions(np.array([4]))
    with pytest.raises(MisuseError, match="4 pages"):
        pool.get_data_page(-1)
    with pytest.raises(MisuseError, match="64 bytes, not 3"):
        pool.set_from_flat_data_page(0, b"abc")
    pool.close()
    with pytest.raises(MisuseError, match="closed"):
        pool.pages(np.array([0]))


def test_closing_under_a_lent_buffer_raises():
    geometry = KVGeometry("mla", 2, 1, 8, page_size=2)
    pool = make_host_pool(geometry, "page_first", 4, huge_pages="off")
    lent = pool.pages(np.array([0]))
    with pytest.raises(BufferError):
        pool.close()
    lent[0][0][:4] = b"safe"
    del lent
    pool.close()
    pool.close()


def test_slots_are_the_allocators():
    geometry = KVGeometry("mla", 2, 1, 8, page_size=2)
    pool = make_host_pool(geometry, "page_first", 4, huge_pages="off")
    slots = pool.alloc(3)
    assert slots.tolist() == [0, 1, 2]
    assert pool.alloc(2) is None
    assert (pool.available, pool.capacity) == (1, 4)
    pool.free(slots)
    assert pool.available == 4
    pool.close()
