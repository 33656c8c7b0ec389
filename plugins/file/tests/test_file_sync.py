"""What is made durable, and when; and O_DIRECT."""

import errno
import mmap
import os

import pytest
from hicache_file.backend import open_file
from hicache_file.options import FileOptions
from hicache_file.place import Placer

from hicache_core.errors import OpenError
from hicache_core.types import IoContext, OpenContext, Outcome


@pytest.mark.parametrize(("sync", "expected"), [("none", []), ("data", ["fdatasync"]), ("full", ["fsync"])])
def test_bytes_are_synced_before_the_key_is_visible(open_store, monkeypatch, sync, expected):
    store = open_store(sync=sync)
    steps = []

    def watch(owner, name):
        real = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *args, **kwargs: (steps.append(name), real(*args, **kwargs))[1])

    watch(os, "fsync")
    watch(os, "fdatasync")
    watch(Placer, "place")
    store = open_store(sync=sync)
    assert store.set(store.key(1)) == [Outcome.STORED]
    assert steps[: steps.index("place")] == expected
    after = steps[steps.index("place") + 1 :]
    assert after == (["fsync"] * 3 if sync == "full" else []), "the leaf, the namespace and the root"


def direct_store(root):
    try:
        return open_file(FileOptions(root=str(root), direct=True), OpenContext(namespace="0" * 32))
    except OpenError as error:
        pytest.skip(f"no O_DIRECT here: {error}")


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("sizes", [[4096], [4096, 8192, 4096], [64, 4096], [1], [5000, 3, 40_000], [0], []])
def test_direct_io_of_aligned_and_other_pages(root, sizes, aligned):
    backend = direct_store(root)
    assert backend.capabilities.alignment == 4096
    total = sum(sizes)
    with mmap.mmap(-1, 200_000) as source, mmap.mmap(-1, 200_000) as target:
        source[:] = os.urandom(200_000)
        shift = 0 if aligned else 17
        cuts = [(sum(sizes[:n]) + shift, sum(sizes[: n + 1]) + shift) for n in range(len(sizes))]
        with memoryview(source) as out, memoryview(target) as back:
            given = [out[a:b] for a, b in cuts]
            taken = [back[a:b] for a, b in cuts]
            assert backend.batch_set(["ns/k"], [given], IoContext()) == [Outcome.STORED]
            assert backend.batch_get(["ns/k"], [taken], IoContext()) == [Outcome.HIT]
            assert target[shift : shift + total] == source[shift : shift + total]
            assert target[shift + total :] == bytes(200_000 - shift - total)
            [path] = (root / "ns").glob("*/*")
            assert path.stat().st_size == total
            for buffer in given + taken:
                buffer.release()
    assert backend.stats().bytes_read == total
    backend.close()


def test_direct_io_of_a_page_that_was_cut_short(root):
    backend = direct_store(root)
    backend.batch_set(["ns/k"], [[memoryview(bytes(10_000))]], IoContext())
    [path] = (root / "ns").glob("*/*")
    os.truncate(path, 9_999)
    page = [memoryview(bytearray(10_000))]
    assert backend.batch_get(["ns/k"], [page], IoContext()) == [Outcome.CORRUPT]
    backend.close()


@pytest.mark.parametrize("nbytes", [40_000, 40_960])
def test_a_disk_that_fills_up_in_the_middle_of_a_direct_page(root, monkeypatch, nbytes):
    """What is left of the bounce buffer after a short write must not hide why the rest was not taken."""
    backend = direct_store(root)
    real, left = os.pwritev, [8192]

    def fills_up(fd, buffers, offset):
        if offset >= left[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        with memoryview(buffers[0])[: left[0] - offset] as some:
            return real(fd, [some], offset)

    page = [memoryview(mmap.mmap(-1, 4096)), memoryview(mmap.mmap(-1, nbytes))[: nbytes - 4096]]
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", fills_up)
        assert backend.batch_set(["ns/k"], [page], IoContext()) == [Outcome.REJECTED]
    assert backend.stats().rejected == 1
    assert backend.batch_set(["ns/k"], [page], IoContext()) == [Outcome.STORED]
    backend.close()


def test_a_disk_that_fails_in_the_middle_of_a_direct_read(root, monkeypatch):
    backend = direct_store(root)
    backend.batch_set(["ns/k"], [[memoryview(bytes(40_000))]], IoContext())
    real = os.preadv

    def breaks(fd, buffers, offset):
        if offset:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        with memoryview(buffers[0])[:8192] as some:
            return real(fd, [some], offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "preadv", breaks)
        assert backend.batch_get(["ns/k"], [[memoryview(bytearray(40_000))]], IoContext()) == [Outcome.UNAVAILABLE]
    assert "Input/output error" in backend.stats().last_error
    backend.close()


def test_a_file_system_without_direct_io_is_refused_with_the_mend(root, monkeypatch):
    real = os.open

    def refuse(path, flags, *args, **kwargs):
        if flags & os.O_DIRECT:
            raise OSError(22, "Invalid argument", path)
        return real(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", refuse)
    descriptors = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OpenError, match="direct=false"):
        open_file(FileOptions(root=str(root), direct=True), OpenContext(namespace="0" * 32))
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert os.listdir(root / "+hicache" / "writers") == []
