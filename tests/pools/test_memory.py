from __future__ import annotations

import ctypes
import mmap
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from hicache_core.errors import CapacityError, ConfigError, MisuseError
from hicache_core.pools import memory as module
from hicache_core.pools.memory import allocate_memory


def resident(view: np.ndarray) -> np.ndarray:
    """mincore(2): whether each page of the mapping is present."""
    count = -(-view.nbytes // mmap.PAGESIZE)
    present = (ctypes.c_ubyte * count)()
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mincore(ctypes.c_void_p(view.ctypes.data), ctypes.c_size_t(view.nbytes), present) == 0
    return np.frombuffer(present, dtype=np.uint8) & 1


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("populate", [True, False])
def test_zeroed_writable_and_present_before_use(monkeypatch, shared, populate):
    if not populate:
        monkeypatch.setattr(module, "_populate", lambda address, size: False)
    memory = allocate_memory(9 << 20, shared=shared, threads=3)
    view = memory.bytes()
    assert view.size == 9 << 20
    assert not view.any()
    assert resident(view).all()
    assert memory.prefault in (("populate", "touch") if populate else ("touch",))
    view[-1] = 7
    assert memory.bytes()[-1] == 7
    del view
    memory.close()


def test_prefault_covers_every_byte_of_an_odd_size():
    memory = allocate_memory((5 << 20) + 4097, threads=2)
    assert resident(memory.bytes()).all()
    memory.close()


def test_shared_memory_is_seen_through_its_descriptor():
    memory = allocate_memory(1 << 16, shared=True)
    memory.bytes()[5] = 9
    assert memory.fd is not None
    assert os.pread(memory.fd, 1, 5) == b"\x09"
    fd = memory.fd
    memory.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_a_dropped_shared_mapping_leaves_no_descriptor():
    before = len(os.listdir("/proc/self/fd"))
    memory = allocate_memory(1 << 16, shared=True)
    del memory
    assert len(os.listdir("/proc/self/fd")) == before


def test_closing_under_a_view_raises_and_a_later_close_works():
    memory = allocate_memory(1 << 16)
    view = memory.bytes()[10:20]
    with pytest.raises(BufferError):
        memory.close()
    view[:] = 1
    assert not memory.closed
    del view
    memory.close()
    memory.close()
    assert memory.closed
    with pytest.raises(MisuseError, match="closed"):
        memory.bytes()


def test_closing_under_a_tensor_raises():
    torch = pytest.importorskip("torch", reason="torch is an extra of the core")
    memory = allocate_memory(1 << 16)
    tensor = torch.from_numpy(memory.bytes())
    with pytest.raises(BufferError):
        memory.close()
    assert int(tensor.sum()) == 0
    del tensor
    memory.close()


def test_reserved_huge_pages_fall_back_and_say_so(monkeypatch):
    real = module._mapping

    def none_reserved(nbytes: int, shared: bool, huge: int):
        if huge:
            raise OSError(12, "Cannot allocate memory")
        return real(nbytes, shared, huge)

    monkeypatch.setattr(module, "_mapping", none_reserved)
    memory = allocate_memory(3 << 20, huge_pages="2MB")
    assert memory.huge_pages in ("transparent", "off")
    assert "no 2MB pages" in memory.notes[0]
    assert "2 must be reserved" in memory.notes[0]
    memory.close()


def test_binding_to_a_node_that_exists_or_saying_why_not():
    memory = allocate_memory(1 << 20, numa_node=0)
    assert (memory.numa_node == 0) == (not any("NUMA" in note for note in memory.notes))
    memory.close()


def test_a_kernel_that_does_not_bind_is_noted(monkeypatch):
    def refuse(address: int, nbytes: int, node: int) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(module.numa, "bind", refuse)
    memory = allocate_memory(1 << 20, numa_node=0)
    assert memory.numa_node is None
    assert "not bound to NUMA node 0" in memory.notes[-1]
    memory.close()


def test_a_node_that_does_not_exist_is_refused(monkeypatch):
    monkeypatch.setattr(module.numa, "nodes", lambda: [0, 1])
    with pytest.raises(ConfigError, match="NUMA node 7 does not exist: this machine has 0, 1"):
        allocate_memory(1 << 20, numa_node=7)


def test_nodes_are_read_from_sysfs(tmp_path):
    for name in ("node0", "node10", "node2", "nodes"):
        (tmp_path / name).mkdir()
    assert module.numa.nodes(tmp_path) == [0, 2, 10]
    assert module.numa.nodes(tmp_path / "none") == []


def test_off_asks_for_nothing():
    memory = allocate_memory(1 << 20, huge_pages="off")
    assert memory.huge_pages == "off"
    assert memory.notes == []
    memory.close()


def test_a_refused_mapping_is_a_capacity_error():
    with pytest.raises(CapacityError, match="refused to map"):
        allocate_memory(1 << 62)
    with pytest.raises(ConfigError, match="0 bytes"):
        allocate_memory(0)


def test_a_failed_prefault_unmaps(monkeypatch):
    made = []
    real = module._owned

    def owned(*args):
        made.append(real(*args))
        return made[-1]

    def fail(address: int, size: int) -> bool:
        raise CapacityError("no memory")

    monkeypatch.setattr(module, "_owned", owned)
    monkeypatch.setattr(module, "_populate", fail)
    with pytest.raises(CapacityError, match="no memory"):
        allocate_memory(8 << 20, threads=2)
    assert [memory.closed for memory in made] == [True]


def test_populate_says_no_on_old_kernels_and_raises_on_others(monkeypatch):
    class Libc:
        def __init__(self, code: int) -> None:
            self.codes = [4, code]

        def madvise(self, address: int, size: int, advice: int) -> int:
            ctypes.set_errno(self.codes.pop(0))
            return -1

    monkeypatch.setattr(module, "_libc", Libc(22))
    assert module._populate(0, 4096) is False
    monkeypatch.setattr(module, "_libc", Libc(12))
    with pytest.raises(CapacityError, match="no memory"):
        module._populate(0, 4096)


def test_threads_of_the_prefault_end():
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: allocate_memory(6 << 20, threads=3).close()).result()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("hicache-prefault")]
