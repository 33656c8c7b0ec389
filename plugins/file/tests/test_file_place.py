"""The three ways from a temporary to its place, and the steps down from one to the next."""

import errno
import os

import pytest
from hicache_file.place import Placer

WAYS = ["_rename", "_link", "_look_and_rename"]


@pytest.fixture
def placer(tmp_path):
    (tmp_path / "from").mkdir()
    (tmp_path / "to").mkdir()
    source, target = (os.open(tmp_path / name, os.O_RDONLY | os.O_DIRECTORY) for name in ("from", "to"))
    yield Placer(source, target)
    os.close(source)
    os.close(target)


def only(placer, monkeypatch, way):
    """Let every way before this one say that the file system cannot."""
    for earlier in WAYS[: WAYS.index(way)]:

        def cannot(name, path):
            raise OSError(errno.EOPNOTSUPP, "not here")

        placer._ways[WAYS.index(earlier)] = cannot


@pytest.mark.parametrize("way", WAYS)
def test_a_free_place_is_taken_and_the_temporary_is_gone(placer, monkeypatch, tmp_path, way):
    only(placer, monkeypatch, way)
    (tmp_path / "from/1").write_bytes(b"new")
    assert placer.place("1", "a") is True
    assert (tmp_path / "to/a").read_bytes() == b"new"
    assert not (tmp_path / "from/1").exists()
    assert placer._ways[0].__name__ == way, "what cannot is not tried again"


@pytest.mark.parametrize("way", WAYS)
def test_a_place_that_is_taken_keeps_its_bytes(placer, monkeypatch, tmp_path, way):
    only(placer, monkeypatch, way)
    (tmp_path / "from/1").write_bytes(b"new")
    (tmp_path / "to/a").write_bytes(b"old")
    assert placer.place("1", "a") is False
    assert (tmp_path / "to/a").read_bytes() == b"old"
    assert (tmp_path / "from/1").exists()


@pytest.mark.parametrize("way", WAYS)
def test_a_place_whose_directory_is_gone_is_an_error(placer, monkeypatch, tmp_path, way):
    only(placer, monkeypatch, way)
    (tmp_path / "from/1").write_bytes(b"new")
    with pytest.raises(FileNotFoundError):
        placer.place("1", "gone/a")
    assert (tmp_path / "from/1").exists()


def test_another_error_is_not_taken_for_a_lack(placer, monkeypatch, tmp_path):
    def full(name, path):
        raise OSError(errno.ENOSPC, "full")

    placer._ways[0] = full
    with pytest.raises(OSError, match="full"):
        placer.place("1", "a")
    assert placer._ways[0] is full
