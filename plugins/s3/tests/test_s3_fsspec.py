"""What only fsspec's file systems can do wrong."""

import os
import uuid

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem
from hicache_conformance import Target, run

from hicache_core.types import Outcome


@pytest.mark.parametrize("protocol", ["file", "memory"])
def test_the_conformance_suite_core(protocol, tmp_path):
    url = f"file://{tmp_path}/kv" if protocol == "file" else f"memory://{uuid.uuid4().hex}"
    report = run(Target("s3", {"url": url}), levels=["core"], seed=7)
    assert not [result for result in report.results if result.outcome in ("fail", "error")]


def test_a_page_in_a_directory_is_never_seen_half_written(open_at, tmp_path, monkeypatch):
    store = open_at(url=f"file://{tmp_path}/kv")
    key, seen = store.key(1), []
    write = LocalFileSystem.open

    def open_and_look(self, path, mode="rb", *args, **kwargs):
        if "w" in mode:
            seen.append(os.path.exists(f"{tmp_path}/kv/{key}"))
            assert "+hicache/temporary" in path
        return write(self, path, mode, *args, **kwargs)

    monkeypatch.setattr(LocalFileSystem, "open", open_and_look)
    assert store.set(key) == [Outcome.STORED]
    assert seen == [False]
    assert os.listdir(tmp_path / "kv" / "+hicache" / "temporary") == []


def test_a_failed_write_leaves_nothing(open_at, tmp_path, monkeypatch):
    store = open_at(url=f"file://{tmp_path}/kv")

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hicache_s3.fsspec_client.os.link", full)
    assert store.set(store.key(1)) == [Outcome.REJECTED]
    assert store.stored() == []
    assert os.listdir(tmp_path / "kv" / "+hicache" / "temporary") == []


def test_what_a_killed_writer_left_is_removed_when_it_is_old(open_at, tmp_path):
    open_at(url=f"file://{tmp_path}/kv").backend.close()
    place = tmp_path / "kv" / "+hicache" / "temporary"
    for name in ("old", "new"):
        (place / name).write_bytes(b"x")
    os.utime(place / "old", (1, 1))
    open_at(url=f"file://{tmp_path}/kv")
    assert os.listdir(place) == ["new"]


def test_a_directory_removed_under_the_store_is_made_again(open_at, tmp_path):
    import shutil

    store = open_at(url=f"file://{tmp_path}/kv")
    assert store.set(store.key(1)) == [Outcome.STORED]
    shutil.rmtree(tmp_path / "kv")
    assert store.get(store.key(1))[0] is Outcome.MISS
    assert store.set(store.key(1)) == [Outcome.STORED]
    assert store.set(store.key(2), replace=True) == [Outcome.STORED]


def test_the_directories_are_private(open_at, tmp_path):
    store = open_at(url=f"file://{tmp_path}/kv")
    store.set(store.key(1))
    assert (tmp_path / "kv").stat().st_mode & 0o777 == 0o700


def test_an_error_of_the_file_system_is_no_absence(open_at, tmp_path, monkeypatch):
    from hicache_core.errors import StorageError

    store = open_at(url=f"file://{tmp_path}/kv")
    store.set(store.key(1))

    def broken(self, path, **kwargs):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(LocalFileSystem, "info", broken)
    with pytest.raises(StorageError, match="Permission denied"):
        store.exists(store.key(1))


def test_a_file_system_without_links_gets_a_temporary_and_a_move(open_at, tmp_path):
    """fsspec's `dir` over a local directory stands for sftp and its like."""
    (tmp_path / "kv").mkdir()
    url = "dir://kv"
    options = {"path": str(tmp_path), "fs": fsspec.filesystem("file", auto_mkdir=True)}
    store = open_at(url=url, storage_options=options)
    assert not store.backend.capabilities.reports_exists
    assert store.set(store.key(1), store.key(1), value=b"abc") == [Outcome.STORED, Outcome.EXISTS]
    assert store.get(store.key(1), 3) == (Outcome.HIT, b"abc")
    assert store.set(store.key(1), value=b"de", replace=True) == [Outcome.STORED]
    assert store.get(store.key(1), 2) == (Outcome.HIT, b"de")
    assert store.delete(store.key(1), store.key(2)) == [Outcome.HIT, Outcome.MISS]
    assert store.stored() == []
