"""An EMULATOR of 3FS's Python SDK (`hf3fs_py_usrbio` and `hf3fs_fuse.io`), for tests on machines without 3FS.

It keeps to the SDK's Python interface (version 1.2.9): the same names, arguments and answers, over preadv and
pwritev on plain files below a directory that plays the mount. It is strict about what adapters get wrong: answers
come in a SHUFFLED order, in parts, only after `submit`; descriptors must be registered; a ring takes no more I/Os
than it has entries. It proves the shape of the calls, not the behaviour of 3FS.
"""

from __future__ import annotations

import os
import random
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

MODULES = ("hf3fs_py_usrbio", "hf3fs_fuse", "hf3fs_fuse.io")
"""What the SDK is imported as."""


class Iovec:
    """Memory that I/O may use; sliced for one I/O, after which `result` and `userdata` tell how it went."""

    def __init__(self, base: Any, id: str, mount: str, block_size: int = 0, numa: int = -1) -> None:
        self.base = memoryview(base).cast("B")
        self.result: int | None = None
        self.userdata: Any = None

    def __getitem__(self, part: slice) -> Iovec:
        return Iovec(self.base[part], "", "")


class Ring:
    """One I/O ring of the emulated SDK."""

    def __init__(self, world: World, mount: str, entries: int, for_read: bool, *rest: Any) -> None:
        self._world, self._entries, self._for_read = world, entries, for_read
        self._prepared: list[tuple[Iovec, int, int]] = []
        self._done: list[Iovec] = []
        self._lock = threading.Lock()

    def prepare(self, iov: Iovec, read: bool, fd: int, off: int, userdata: Any = None) -> Ring:
        """Note one I/O."""
        if read is not self._for_read:
            raise ValueError("this ring is for " + ("reading" if self._for_read else "writing"))
        if len(self._prepared) + len(self._done) >= self._entries:
            raise OSError(11, "the ring is full")
        iov.userdata = userdata
        self._prepared.append((iov, fd, off))
        return self

    def submit(self) -> Ring:
        """Do what was prepared, unless the world holds I/O back."""
        prepared, self._prepared = self._prepared, []
        for iov, fd, off in prepared:
            iov.result = self._world.perform(iov.base, self._for_read, fd, off)
        with self._lock:
            self._done += [iov for iov, _, _ in prepared]
            self._world.random.shuffle(self._done)
        return self

    def wait(self, *, max_results: int = 0, min_results: int = 0, timeout: timedelta | None = None) -> list[Iovec]:
        """Some answers, in no order; fewer than asked for where time runs out."""
        if self._world.held_back(min_results, timeout):
            return []
        with self._lock:
            most = min(max_results or len(self._done), len(self._done))
            count = self._world.random.randint(min(min_results, most), most)
            answers, self._done = self._done[:count], self._done[count:]
        return answers


class World:
    """The emulated node: what is registered, and what goes wrong. Tests set `fail` and `release`."""

    def __init__(self, mount: Path, seed: int) -> None:
        self.mount = mount
        self.random = random.Random(seed)
        self.registered: set[int] = set()
        self.fail: dict[tuple[bool, int], int] = {}
        """(read, offset) → what the I/O answers instead of being done: -errno, or a length."""
        self.release = threading.Event()
        """Cleared: answers are held back until it is set or the wait times out."""
        self.release.set()
        self.moved = 0

    def perform(self, base: memoryview, read: bool, fd: int, off: int) -> int:
        """One I/O; bytes or -errno."""
        if fd not in self.registered:
            return -9  # EBADF
        if (read, off) in self.fail:
            return self.fail[read, off]
        try:
            count = os.preadv(fd, [base], off) if read else os.pwritev(fd, [base], off)
        except OSError as error:
            return -(error.errno or 5)
        self.moved += count
        return count

    def held_back(self, min_results: int, timeout: timedelta | None) -> bool:
        """Wait while answers are held back; whether they still are."""
        if min_results and not self.release.is_set():
            self.release.wait(None if timeout is None else timeout.total_seconds())
        return not self.release.is_set()

    def extract_mount_point(self, path: str) -> str | None:
        """The mount that the path is on."""
        inside = Path(path).resolve().is_relative_to(self.mount.resolve())
        return str(self.mount) if inside else None


@contextmanager
def emulated_3fs(mount: Path, seed: int = 0) -> Iterator[World]:
    """Have `mount` play a 3FS mount: both modules of the SDK can be imported meanwhile."""
    before = {name: sys.modules.get(name) for name in MODULES}
    world = install_emulator(mount, seed)
    try:
        yield world
    finally:
        for name, module in before.items():
            if module is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = module


def install_emulator(mount: Path, seed: int = 0) -> World:
    """As `emulated_3fs`, for the rest of this process."""
    (mount / "3fs-virt" / "iovs").mkdir(parents=True, exist_ok=True)
    world = World(mount, seed)
    sys.modules.update(zip(MODULES, (_usrbio(world), ModuleType("hf3fs_fuse"), _io(world)), strict=True))
    return world


def _usrbio(world: World) -> ModuleType:
    module: Any = ModuleType("hf3fs_py_usrbio")
    module.iovec = Iovec
    module.ioring = lambda *arguments: Ring(world, *arguments)
    return _with_functions(module, world)


def _io(world: World) -> ModuleType:
    module: Any = ModuleType("hf3fs_fuse.io")

    def make_iovec(shm: Any, mount: str, block_size: int = 0, numa: int = -1) -> LinkedIovec:
        return LinkedIovec(shm, mount, block_size, numa)

    def make_ioring(
        mount: str, entries: int, for_read: bool = True, io_depth: int = 0, priority: Any = None, **rest: Any
    ) -> Ring:
        return Ring(world, mount, entries, for_read)

    module.make_iovec, module.make_ioring = make_iovec, make_ioring
    return _with_functions(module, world)


def _with_functions(module: Any, world: World) -> ModuleType:
    module.extract_mount_point = world.extract_mount_point
    module.register_fd = lambda fd, flags=0: world.registered.add(fd)
    module.deregister_fd = world.registered.discard
    module.force_fsync = os.fsync
    whole: ModuleType = module
    return whole


class LinkedIovec:
    """As hf3fs_fuse.io's: an iovec, and the link by which the client finds its memory, removed with it."""

    def __init__(self, shm: Any, mount: str, block_size: int, numa: int) -> None:
        name = os.urandom(16).hex()
        self._iov = Iovec(shm.buf, name, mount, block_size, numa)
        self._link = f"{mount}/3fs-virt/iovs/{name}"
        os.symlink(f"/dev/shm/{shm.name}", self._link)

    def __getitem__(self, part: slice) -> Iovec:
        return self._iov[part]

    def __del__(self) -> None:
        os.unlink(self._link)
