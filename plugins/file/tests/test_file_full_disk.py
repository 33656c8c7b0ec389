"""A disk that is full, or an error at any step of a write: an honest outcome, and no trace."""

import errno
import os
import subprocess
import sys

import pytest
from hicache_file.backend import open_file
from hicache_file.options import FileOptions
from hicache_file.place import Placer

from hicache_core.types import IoContext, OpenContext, Outcome

STEPS = ["open", "pwritev", "fstat", "place", "mkdir"]


def fail_once(monkeypatch, step, number, when=lambda *a, **k: True):
    """The next call of os.<step>, or the step that publishes, fails."""
    owner, name = (Placer, "place") if step == "place" else (os, step)
    real, left = getattr(owner, name), [1]

    def call(*args, **kwargs):
        if left[0] and when(*args, **kwargs):
            left[0] = 0
            raise OSError(number, os.strerror(number), "here")
        return real(*args, **kwargs)

    monkeypatch.setattr(owner, name, call)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(
    ("number", "outcome"),
    [
        (errno.ENOSPC, Outcome.REJECTED),
        (errno.EDQUOT, Outcome.REJECTED),
        (errno.EFBIG, Outcome.REJECTED),
        (errno.EIO, Outcome.UNAVAILABLE),
        (errno.EROFS, Outcome.UNAVAILABLE),
        (errno.EMFILE, Outcome.UNAVAILABLE),
    ],
)
def test_an_error_at_any_step_leaves_no_trace(store, root, monkeypatch, step, number, outcome):
    store.set(store.key(1))
    descriptors = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        fail_once(patch, step, number)
        assert store.set(store.key(2)) == [outcome]
    assert store.stored() == [store.key(1)]
    assert store.get(store.key(2))[0] is Outcome.MISS
    writer = store.backend._store.writer
    assert os.listdir(root / "+hicache" / "writers" / writer.name) == ["record"]
    stats = store.backend.stats()
    assert (stats.files, stats.bytes_allocated) == (1, store.allocated())
    assert stats.rejected == (outcome is Outcome.REJECTED)
    assert stats.errors == (outcome is Outcome.UNAVAILABLE)
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert store.set(store.key(2)) == [Outcome.STORED]


@pytest.mark.parametrize("step", ["open", "pwritev", "fstat", "rename"])
def test_a_failed_replace_keeps_the_old_page(store, monkeypatch, step):
    store.set(store.key(1), value=b"old")
    with monkeypatch.context() as patch:
        fail_once(patch, step, errno.ENOSPC)
        assert store.set(store.key(1), value=b"new", replace=True) == [Outcome.REJECTED]
    assert store.get(store.key(1), 3) == (Outcome.HIT, b"old")
    assert store.backend.stats().bytes_allocated == store.allocated()


def test_a_full_disk_ends_the_batch_but_not_for_what_is_there(store, monkeypatch):
    store.set(store.key(3))
    with monkeypatch.context() as patch:
        fail_once(patch, "pwritev", errno.ENOSPC)
        outcomes = store.set(*[store.key(n) for n in range(5)])
    assert outcomes == [Outcome.REJECTED] * 3 + [Outcome.EXISTS, Outcome.REJECTED]
    assert store.set(store.key(0)) == [Outcome.STORED]


def test_a_disk_that_is_full_before_the_cap_is_reached_makes_room_for_the_next(open_store, monkeypatch):
    store = open_store(max_size=1 << 30)
    store.set(*[store.key(n) for n in range(10)])
    with monkeypatch.context() as patch:
        fail_once(patch, "pwritev", errno.ENOSPC)
        assert store.set(store.key(20), store.key(21)) == [Outcome.REJECTED] * 2
    assert store.backend.stats().evictions == 2
    assert len(store.stored()) == 8


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.ESTALE])
@pytest.mark.parametrize("step", ["open", "fstat", "preadv"])
def test_an_error_while_reading_is_not_a_miss(store, monkeypatch, step, number):
    store.set(store.key(1), store.key(2))
    descriptors = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        fail_once(patch, step, number)
        assert store.get(store.key(1))[0] is Outcome.UNAVAILABLE
    assert store.get(store.key(1))[0] is Outcome.HIT
    assert store.backend.stats().errors == 1
    assert len(os.listdir("/proc/self/fd")) == descriptors


LIMITED = """
import os, resource, sys
from hicache_core.types import IoContext, OpenContext
from hicache_file.backend import open_file
from hicache_file.options import FileOptions
backend = open_file(FileOptions(root=sys.argv[1]), OpenContext(namespace="0" * 32))
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
pages = [[memoryview(bytes(nbytes))] for nbytes in (100_000, 100_001, 5_000_000, 10)]
print([o.value for o in backend.batch_set([f"ns/{n}" for n in range(4)], pages, IoContext())])
print(backend.scan(None, None)[0], os.listdir(f"/proc/self/fd/{backend._store.writer.fd}"))
backend.close()
"""


def test_a_file_size_limit(root):
    run = subprocess.run([sys.executable, "-c", LIMITED, str(root)], capture_output=True, text=True, check=True)
    outcomes, left = run.stdout.splitlines()
    assert outcomes == "['stored', 'rejected', 'rejected', 'stored']"
    assert "ns/1" not in left
    assert left.endswith("['record']")
    assert dict(_sizes(root)) == {"0": 100_000, "3": 10}


def _sizes(root):
    return [(path.name, path.stat().st_size) for path in (root / "ns").glob("*/*")]


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 4 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m,mode=0700", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mount.returncode:
        pytest.skip("needs the right to mount a tmpfs")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.parametrize("replace", [False, True])
def test_a_really_full_disk(small_disk, replace):
    backend = open_file(FileOptions(root=str(small_disk)), OpenContext(namespace="0" * 32))
    keys = [f"ns/{n}" for n in range(64)]
    source = os.urandom(100_000)
    outcomes = [backend.batch_set([key], [[memoryview(source)]], IoContext(replace=replace))[0] for key in keys]
    stored = [key for key, outcome in zip(keys, outcomes, strict=True) if outcome is Outcome.STORED]
    assert 20 < len(stored) < 42
    assert set(outcomes) == {Outcome.STORED, Outcome.REJECTED}
    assert sorted(key for key, _, _ in backend.scan(None, None)[0]) == sorted(stored)
    for key in stored:
        target = bytearray(100_000)
        assert backend.batch_get([key], [[memoryview(target)]], IoContext()) == [Outcome.HIT]
        assert target == source
    stats = backend.stats()
    assert stats.files == len(stored)
    assert stats.bytes_allocated == len(stored) * 102_400
    assert backend.delete(stored[:3], IoContext()) == [Outcome.HIT] * 3
    assert backend.batch_set(["ns/new"], [[memoryview(source)]], IoContext()) == [Outcome.STORED]
    backend.close()


def test_a_really_full_disk_with_min_free_space_never_fills(small_disk):
    options = FileOptions(root=str(small_disk), min_free_space=1 << 20)
    backend = open_file(options, OpenContext(namespace="0" * 32))
    for number in range(100):
        key = f"ns/{number}"
        assert backend.batch_set([key], [[memoryview(bytes(100_000))]], IoContext()) == [Outcome.STORED]
        assert os.statvfs(small_disk).f_bavail * 4096 >= 1 << 20
    assert backend.stats().evictions > 60
    backend.close()
