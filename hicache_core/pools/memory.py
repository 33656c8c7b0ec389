"""Memory for host pools: one mapping, touched page by page before it is used, by several threads at once.

Views are numpy arrays over the mapping's buffer (`torch.from_numpy` takes them without a copy). They hold an export
of the mapping, so closing it under a live view raises BufferError where an address would have dangled.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from hicache_core.errors import CapacityError, ConfigError, MisuseError
from hicache_core.pools import numa
from hicache_core.pools.sizing import gb

HugePages = Literal["off", "transparent", "2MB", "1GB"]
HUGE_PAGE_BYTES: dict[str, int] = {"2MB": 2 << 20, "1GB": 1 << 30}

_MADV_HUGEPAGE = 14
_MADV_POPULATE_WRITE = 23  # Linux 5.14; not in Python's mmap module
_MAP_HUGETLB = 0x40000
_MAP_HUGE_SHIFT = 26
_STRIPE = 2 << 20
_PREFAULT_THREADS = 8


@dataclass(eq=False)
class HostMemory:
    """One mapping of `nbytes` usable bytes. `huge_pages` is what was obtained, not what was asked; `notes` say why.

    `fd` is the memfd of shared memory (another process may map it), None for private memory. A child made by fork
    sees private memory copy-on-write; a pool belongs to the process that made it.
    """

    nbytes: int
    huge_pages: HugePages
    prefault: str = ""
    """How pages were made present: `populate` (madvise) or `touch`."""
    fd: int | None = None
    notes: list[str] = field(default_factory=list)
    numa_node: int | None = None
    """The node that its pages were bound to, None where to none."""
    _mapping: mmap.mmap | None = None
    _finalizer: weakref.finalize[[int], HostMemory] | None = None

    def bytes(self) -> npt.NDArray[np.uint8]:
        """The memory as uint8[nbytes], writable, without a copy. It keeps the mapping from being closed."""
        if self._mapping is None:
            raise MisuseError("this memory is closed")
        return np.frombuffer(self._mapping, dtype=np.uint8)[: self.nbytes]

    @property
    def mapped_nbytes(self) -> int:
        """Bytes of the mapping: nbytes, rounded up to huge pages where it has reserved ones."""
        return 0 if self._mapping is None else len(self._mapping)

    @property
    def closed(self) -> bool:
        """Whether the mapping is gone."""
        return self._mapping is None

    def close(self) -> None:
        """Unmap. Idempotent. Raises BufferError while a view is alive; call again once it is gone."""
        if self._mapping is not None:
            self._mapping.close()
            self._mapping = None
        if self.fd is not None and self._finalizer is not None:
            self._finalizer()
            self.fd = None


def allocate_memory(
    nbytes: int,
    *,
    huge_pages: HugePages = "transparent",
    shared: bool = False,
    threads: int | None = None,
    numa_node: int | None = None,
) -> HostMemory:
    """Map and pre-fault `nbytes`, zeroed.

    huge_pages: `transparent` asks the kernel for 2 MB pages where it can; `2MB` and `1GB` want reserved ones and
    fall back to transparent, saying so in `notes`. shared: a memfd. threads: of the pre-fault (cores, at most 8).
    numa_node: take pages from this node; where the kernel will not, from any, saying so in `notes`.
    Raises CapacityError where the kernel refuses the mapping or its pages.
    """
    if nbytes < 1:
        raise ConfigError(f"a host pool of {nbytes} bytes cannot be mapped")
    notes: list[str] = []
    memory = _map(nbytes, huge_pages, shared, notes)
    try:
        if numa_node is not None:
            _bind(memory, numa_node)
        memory.prefault = _prefault(memory, threads or min(os.cpu_count() or 1, _PREFAULT_THREADS))
    except BaseException:
        memory.close()
        raise
    return memory


def _map(nbytes: int, huge_pages: HugePages, shared: bool, notes: list[str]) -> HostMemory:
    """The first of reserved huge pages and ordinary memory that the kernel gives."""
    if huge_pages in HUGE_PAGE_BYTES:
        size = HUGE_PAGE_BYTES[huge_pages]
        try:
            mapping, fd = _mapping(-(-nbytes // size) * size, shared, size)
        except (OSError, ValueError) as error:
            notes.append(
                f"no {huge_pages} pages ({error}): {-(-nbytes // size)} must be reserved "
                f"(vm.nr_hugepages or hugepages=); transparent ones were asked for instead"
            )
            huge_pages = "transparent"
        else:
            return _owned(nbytes, huge_pages, fd, notes, mapping)
    try:
        mapping, fd = _mapping(nbytes, shared, 0)
    except OSError as error:
        raise CapacityError(f"the kernel refused to map {gb(nbytes)} for the host pool: {error}") from error
    got: HugePages = "off"
    if huge_pages == "transparent":
        got = "transparent" if _advise_huge(mapping, shared, notes) else "off"
    return _owned(nbytes, got, fd, notes, mapping)


def _owned(nbytes: int, huge: HugePages, fd: int | None, notes: list[str], mapping: mmap.mmap) -> HostMemory:
    memory = HostMemory(nbytes, huge, fd=fd, notes=notes, _mapping=mapping)
    if fd is not None:
        memory._finalizer = weakref.finalize(memory, os.close, fd)
    return memory


def _mapping(nbytes: int, shared: bool, huge: int) -> tuple[mmap.mmap, int | None]:
    """An anonymous private mapping, or a shared one of a new memfd."""
    size_bits = (huge.bit_length() - 1) if huge else 0
    if not shared:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        if huge:
            flags |= _MAP_HUGETLB | (size_bits << _MAP_HUGE_SHIFT)
        return mmap.mmap(-1, nbytes, flags=flags), None
    flags = os.MFD_CLOEXEC | (os.MFD_HUGETLB | (size_bits << os.MFD_HUGE_SHIFT) if huge else 0)
    fd = os.memfd_create("hicache-host-pool", flags)
    try:
        os.ftruncate(fd, nbytes)
        return mmap.mmap(fd, nbytes, flags=mmap.MAP_SHARED), fd
    except BaseException:
        os.close(fd)
        raise


def _advise_huge(mapping: mmap.mmap, shared: bool, notes: list[str]) -> bool:
    """Ask for transparent huge pages; whether the kernel's setting lets them be."""
    switch = "shmem_enabled" if shared else "enabled"
    try:
        setting = (Path("/sys/kernel/mm/transparent_hugepage") / switch).read_text()
        mapping.madvise(_MADV_HUGEPAGE)
    except OSError as error:
        notes.append(f"no transparent huge pages: {error}")
        return False
    if "[never]" in setting or "[deny]" in setting:
        notes.append(f"no transparent huge pages: {switch} is {setting.strip()}")
        return False
    return True


def _bind(memory: HostMemory, node: int) -> None:
    """Bind the pages to a node, or note why not."""
    known = numa.nodes()
    if known and node not in known:
        raise ConfigError(f"NUMA node {node} does not exist: this machine has {', '.join(map(str, known))}")
    try:
        numa.bind(memory.bytes().ctypes.data, memory.mapped_nbytes, node)
        memory.numa_node = node
    except OSError as error:
        memory.notes.append(f"the memory is not bound to NUMA node {node}: {error}")


def _prefault(memory: HostMemory, threads: int) -> str:
    """Make every page present, in parallel; how it was done. The calls release the GIL.

    No view of the memory outlives a call here, so that a failure can unmap it.
    """
    address, length = memory.bytes().ctypes.data, memory.nbytes
    share = max(_STRIPE, -(-length // (threads * _STRIPE)) * _STRIPE)
    starts = range(0, length, share)

    def populate(start: int) -> bool:
        return _populate(address + start, min(share, length - start))

    def touch(start: int) -> None:
        memory.bytes()[start : start + share : mmap.PAGESIZE] = 0

    with ThreadPoolExecutor(len(starts), thread_name_prefix="hicache-prefault") as pool:
        if all(list(pool.map(populate, starts))):
            return "populate"
        list(pool.map(touch, starts))
    return "touch"


_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def _populate(address: int, size: int) -> bool:
    """madvise(MADV_POPULATE_WRITE), outside the GIL (mmap.madvise holds it); False where the kernel is too old."""
    while _libc.madvise(address, size, _MADV_POPULATE_WRITE):
        code = ctypes.get_errno()
        if code == 4:  # EINTR: pages done so far stay
            continue
        if code == 22:  # EINVAL
            return False
        raise CapacityError(f"the kernel has no memory for {gb(size)} of the host pool: {os.strerror(code)}")
    return True
