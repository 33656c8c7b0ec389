"""What can be wrong with a store is said when it is opened, with the mend."""

import os
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing

import pytest
from hicache_hf3fs.backend import open_hf3fs
from hicache_hf3fs.index.schema import DATABASE
from hicache_hf3fs.options import Hf3fsOptions
from hicache_hf3fs.probe import probe

from hicache_core.errors import OpenError, OptionError
from hicache_core.plugin.options import redact
from hicache_core.plugin.select import choose_backend
from hicache_core.types import IoContext, OpenContext, Outcome

CTX = OpenContext(namespace="0" * 32)
LOOKING = OpenContext(namespace="0" * 32, inspecting=True)


def refused(error=OpenError, ctx=CTX, **options):
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(error) as caught:
        open_hf3fs(Hf3fsOptions(**options), ctx)
    message = str(caught.value)
    caught.value.__traceback__ = None
    assert len(os.listdir("/proc/self/fd")) <= before, "a failed open leaves no descriptor"
    return message


def test_the_root_and_all_below_it_are_private(store, root):
    store.set(store.key(1))
    modes = {p.relative_to(root): stat.S_IMODE(p.stat().st_mode) for p in [root, *root.rglob("*")]}
    assert all(mode == (0o700 if (root / path).is_dir() else 0o600) for path, mode in modes.items()), modes


def test_roots_that_cannot_be(tmp_path):
    assert "empty" in refused(OptionError, root="")
    assert "NUL" in refused(OptionError, root="a\0b")
    assert "home of a user" in refused(OptionError, root="~nobody-of-this-name/kv")
    file = tmp_path / "file"
    file.write_text("x")
    assert "is not a directory" in refused(root=str(file))
    assert "is not a directory" in refused(root=str(file / "below"))
    assert "cannot be opened" in refused(root="/proc/hicache-store")
    assert "empty" in refused(OptionError, root=str(tmp_path / "a"), index_dir="")


def test_a_tool_that_looks_before_there_is_a_store(tmp_path):
    for root in (tmp_path / "not-there", tmp_path):
        assert "whoever stores first makes it" in refused(ctx=LOOKING, root=str(root))
    assert list(tmp_path.iterdir()) == []


def test_a_root_that_everybody_can_write(tmp_path):
    tmp_path.chmod(0o777)
    assert f"chmod o-w {tmp_path}" in refused(root=str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_root_that_is_a_link(tmp_path):
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir(0o700)
    link.symlink_to(real)
    assert "allow_symlink" in refused(root=str(link))
    assert "allow_symlink" in refused(root=str(tmp_path / "x"), index_dir=str(link))
    assert list(real.iterdir()) == []
    open_hf3fs(Hf3fsOptions(root=str(link), allow_symlink=True), CTX).close()
    assert (real / "slots").is_dir()


@pytest.mark.parametrize("name", ["slots", "owners", DATABASE, "store-id"])
def test_links_in_the_place_of_our_own_are_not_followed(tmp_path, name):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    root = tmp_path / "root"
    root.mkdir(0o700)
    (root / name).symlink_to(elsewhere if "." not in name and name != "store-id" else elsewhere / "file")
    refused(root=str(root))
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize("kind", ["link", "fifo", "directory"])
def test_what_lies_in_the_place_of_a_slot_file_is_no_slot_file(store, root, tmp_path, kind):
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    path = root / "slots" / "4096.0"
    {"link": lambda: path.symlink_to(victim), "fifo": lambda: os.mkfifo(path), "directory": path.mkdir}[kind]()
    assert store.set(store.key(1)) == [Outcome.UNAVAILABLE]
    assert store.set(store.key(2), value=bytes(9000)) == [Outcome.STORED]
    assert store.totals.slots_reserved == 0
    assert victim.read_bytes() == b"mine"


def test_foreign_files_are_left_alone(store, root):
    for name in ("Notes.txt", "slots/Notes.txt", "owners/Notes.txt"):
        (root / name).write_text("mine")
    store.set(store.key(1))
    store.backend.clear(store.key(1).partition("/")[0])
    store.backend.close()
    open_hf3fs(Hf3fsOptions(root=str(root)), CTX).close()
    assert [(root / name).read_text() for name in ("Notes.txt", "slots/Notes.txt", "owners/Notes.txt")] == [
        "mine"
    ] * 3


def test_an_index_of_a_later_layout_is_left_alone(root, store, monkeypatch):
    store.backend.close()
    monkeypatch.setattr("hicache_hf3fs.index.schema.LAYOUT", 0)
    assert "upgrade" in refused(root=str(root))


def test_a_damaged_index_is_told(root, store):
    store.backend.close()
    (root / DATABASE).write_bytes(b"garbage" * 1000)
    assert "cannot be opened" in refused(root=str(root))


def test_an_index_that_another_process_keeps_locked(root, store, monkeypatch):
    monkeypatch.setattr("hicache_hf3fs.index.connections._PATIENCE_SECONDS", 0.05)
    with closing(sqlite3.connect(root / DATABASE, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        with pytest.raises(OpenError, match="does not go on"):
            open_hf3fs(Hf3fsOptions(root=str(root)), CTX)
        store.backend._store.index._connections._writer.execute("PRAGMA busy_timeout = 50")
        assert store.set(store.key(1)) == [Outcome.TIMEOUT]
        assert store.get(store.key(1))[0] is Outcome.MISS, "readers do not wait"
    assert store.set(store.key(1)) == [Outcome.STORED]


def test_a_tool_that_looks_makes_nothing(tmp_path, opened):
    assert "cannot be opened" in refused(ctx=LOOKING, root=str(tmp_path / "none"))
    empty = tmp_path / "empty"
    empty.mkdir(0o700)
    assert "holds no hf3fs store" in refused(ctx=LOOKING, root=str(empty))
    assert list(empty.iterdir()) == []
    store = opened(root=str(tmp_path / "store"))
    store.set(store.key(1))
    with closing(sqlite3.connect(store.root / DATABASE, isolation_level=None)) as connection:
        connection.execute("UPDATE pages SET used = 5")
    looking = open_hf3fs(Hf3fsOptions(root=str(tmp_path / "store")), LOOKING)
    page = [memoryview(bytearray(1064))]
    assert looking.batch_get([store.key(1)], [page], IoContext()) == [Outcome.HIT]
    assert looking.scan(None, None)[0][0][2] == 5, "looking is no use"
    looking.close()


def test_an_index_elsewhere(tmp_path, opened):
    store = opened(root=str(tmp_path / "pages"), index_dir=str(tmp_path / "index"), io="posix")
    store.set(store.key(1))
    assert sorted(p.name for p in (tmp_path / "pages").iterdir()) == ["slots", "store-id"]
    store.backend.close()
    again = opened(root=str(tmp_path / "pages"), index_dir=str(tmp_path / "index"))
    assert again.get(again.key(1))[0] is Outcome.HIT


def test_the_entry_points_module_is_light():
    code = (
        "import sys, hicache_hf3fs.plugin\n"
        "heavy = ('torch', 'sqlite3', 'hicache_hf3fs.backend', 'hicache_core.storage')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_the_plugin_is_found_and_hides_its_token():
    choice = choose_backend("hf3fs", {"root": "/x", "max_size": "1GiB", "metadata_token": "hunter2"})
    assert choice.options.max_size == 1 << 30
    assert choice.capabilities.durable
    assert choice.capabilities.zero_copy_v1
    assert "hunter2" not in str(redact(choice.options))
    assert not choose_backend("hf3fs", {"root": "/x", "io": "usrbio"}).capabilities.zero_copy_v1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "'root' is required"),
        ({"rot": "/x"}, "did you mean 'root'"),
        ({"root": "/x", "io": "usrbo"}, "'usrbio'"),
        ({"root": "/x", "max_size": 5}, "4096"),
        ({"root": "/x", "rings": 0}, "1"),
    ],
)
def test_wrong_options_name_the_right_ones(options, says):
    with pytest.raises(OptionError, match=says):
        choose_backend("hf3fs", options)


def test_probe_tells_what_doctor_should_say(tmp_path):
    assert probe(None) == []
    assert probe(Hf3fsOptions(root=str(tmp_path / "a" / "b"))) == []
    (tmp_path / "file").write_text("")
    assert "not a directory" in probe(Hf3fsOptions(root=str(tmp_path / "file")))[0]
    (tmp_path / "link").symlink_to(tmp_path)
    assert "symbolic link" in probe(Hf3fsOptions(root=str(tmp_path), index_dir=str(tmp_path / "link")))[0]
    assert "build hf3fs_py_usrbio" in probe(Hf3fsOptions(root=str(tmp_path), io="usrbio"))[0]
    assert "cannot be reached" in probe(Hf3fsOptions(root=str(tmp_path), metadata_url="http://127.0.0.1:9"))[0]
    tmp_path.chmod(0o777)
    assert "chmod o-w" in probe(Hf3fsOptions(root=str(tmp_path)))[0]
    assert not (tmp_path / "slots").exists()
