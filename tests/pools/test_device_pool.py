from __future__ import annotations

import numpy as np
import pytest

from hicache_core.errors import CapacityError, ConfigError, MisuseError
from hicache_core.pools import naive
from hicache_core.pools.device import DevicePool, NumpyDevicePool
from hicache_core.pools.geometry import KVGeometry

PAGES = 5


def make(kind: str, geometry: KVGeometry, pages: int = PAGES) -> DevicePool:
    if kind == "numpy":
        return NumpyDevicePool(geometry, pages)
    pytest.importorskip("torch", reason="torch is an extra of the core")
    from hicache_core.pools.device.torch_pool import TorchDevicePool

    return TorchDevicePool(geometry, pages)


@pytest.fixture(params=["numpy", "torch"])
def kind(request):
    return request.param


def reference(geometry: KVGeometry, arrays: tuple[np.ndarray, ...], page: int) -> bytes:
    """The page in the order of page_first, row by row."""
    return b"".join(
        arrays[part][layer, page, token, head].tobytes()
        for part, layer, token, head in naive.page_rows(geometry, "page_first")
    )


@pytest.mark.parametrize("pages", [10**12, 10**18, 10**30])
def test_more_than_the_memory_is_refused_with_the_numbers(kind, geometry, pages):
    with pytest.raises(CapacityError, match=r"device pool of .* does not fit: .* are available .* fewer than 1,000"):
        make(kind, geometry, pages)


def test_pages_in_one_byte_order(kind, geometry):
    pool = make(kind, geometry)
    arrays = pool.byte_arrays()
    random = np.random.default_rng(0)
    for array in arrays:
        array[:] = random.integers(0, 256, array.shape, dtype=np.uint8)
    slots = np.array([3, 0, 3])
    pages = pool.read_pages(slots)
    for row, slot in enumerate(slots.tolist()):
        assert pages[row].tobytes() == pool.read_page(slot) == reference(geometry, arrays, slot)
    other = random.integers(0, 256, (2, pool.page_nbytes), dtype=np.uint8)
    kept = [pool.read_page(slot) for slot in range(PAGES)]
    pool.write_pages(np.array([4, 1]), other)
    assert pool.read_page(4) == other[0].tobytes()
    assert reference(geometry, arrays, 1) == other[1].tobytes()
    assert [pool.read_page(slot) for slot in (0, 2, 3)] == [kept[slot] for slot in (0, 2, 3)]
    pool.write_page(2, kept[0])
    assert pool.read_page(2) == kept[0]


def test_layers_are_views_of_the_fields_shape(kind):
    geometry = KVGeometry("mha", 3, 2, 8, v_head_dim=4, dtype="float16", page_size=4)
    pool = make(kind, geometry)
    assert tuple(pool.k(1).shape) == (PAGES, 4, 2, 8)
    assert tuple(pool.v(1).shape) == (PAGES, 4, 2, 4)
    pool.k(1)[2, 3, 1] = 1.5
    k = np.frombuffer(pool.read_page(2), np.float16)[: 4 * 3 * 2 * 8].reshape(4, 3, 2, 8)
    assert (k[3, 1, 1] == 1.5).all()
    assert np.count_nonzero(k) == 8


def test_mla_keeps_one_array_and_v_is_its_latent(kind):
    geometry = KVGeometry("mla", 3, 1, 12, rope_dim=4, dtype="float32", page_size=4)
    pool = make(kind, geometry)
    assert tuple(pool.k(0).shape) == (PAGES, 4, 1, 12)
    assert tuple(pool.v(0).shape) == (PAGES, 4, 1, 8)
    pool.v(2)[1, 0, 0, 7] = 3.0
    assert float(pool.k(2)[1, 0, 0, 7]) == 3.0
    with pytest.raises(ConfigError, match="rope_dim"):
        make(kind, KVGeometry("mla", 3, 1, 12)).v(0)


def test_bits_of_a_dtype_that_numpy_lacks():
    geometry = KVGeometry("mha", 1, 1, 2, dtype="bfloat16", page_size=1)
    pool = NumpyDevicePool(geometry, 1)
    assert pool.k(0).dtype == np.uint16
    torch = pytest.importorskip("torch", reason="torch is an extra of the core")
    tensors = make("torch", geometry)
    assert tensors.k(0).dtype == torch.bfloat16
    tensors.k(0)[0, 0, 0, 1] = 1.0
    pool.write_page(0, tensors.read_page(0))
    assert pool.k(0)[0, 0, 0].tolist() == [0, 0x3F80]


def test_slots_and_misuse(kind):
    pool = make(kind, KVGeometry("mha", 1, 1, 2, page_size=1))
    slots = pool.alloc(2)
    assert slots.tolist() == [0, 1]
    assert (pool.available, pool.capacity, pool.page_size) == (3, PAGES, 1)
    pool.free(slots)
    pool.check_integrity()
    with pytest.raises(MisuseError, match="5 pages"):
        pool.read_page(5)
    with pytest.raises(MisuseError, match="pages of 8 bytes"):
        pool.write_page(0, b"abc")
    with pytest.raises(ConfigError, match="at least one"):
        type(pool)(pool.geometry, 0)


def test_what_torch_cannot_do_is_told():
    pytest.importorskip("torch", reason="torch is an extra of the core")
    from hicache_core.pools.device.torch_pool import TorchDevicePool

    with pytest.raises(ConfigError, match="cannot make the device pool on 'nonsense'"):
        TorchDevicePool(KVGeometry("mha", 1, 1, 2), 1, device="nonsense")


def test_pages_through_torch_match_pages_through_numpy(monkeypatch):
    """The route for devices that the CPU cannot address, taken on the CPU."""
    pytest.importorskip("torch", reason="torch is an extra of the core")
    geometry = KVGeometry("mha", 3, 2, 6, v_head_dim=4, dtype="bfloat16", page_size=4)
    pool = make("torch", geometry)
    content = np.random.default_rng(5).integers(0, 256, (2, pool.page_nbytes), dtype=np.uint8)
    addressable, pool._bytes = pool._bytes, None
    pool.write_pages(np.array([3, 1]), content)
    through_torch = pool.read_pages(np.array([1, 3, 0]))
    pool._bytes = addressable
    assert (through_torch == pool.read_pages(np.array([1, 3, 0]))).all()
    assert through_torch[1].tobytes() == content[0].tobytes()
