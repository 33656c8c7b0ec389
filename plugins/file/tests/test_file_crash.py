"""What a process that dies at work leaves behind: no torn page, and nothing that stays."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hicache_file.account import Debit
from hicache_file.backend import open_file
from hicache_file.options import FileOptions

from hicache_core.types import IoContext, OpenContext, Outcome

KILL_WRITER = Path(__file__).with_name("kill_writer.py")


@pytest.mark.parametrize("limits", [[], ["--max-size", "5000000"]], ids=["no cap", "capped"])
def test_kill_9_leaves_no_torn_page_and_nothing_behind(tmp_path, limits):
    pytest.importorskip("hicache_conformance", reason="pip install hicache-conformance")
    command = [sys.executable, str(KILL_WRITER), str(tmp_path / "store"), "--rounds", "10", *limits]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    report = json.loads(run.stdout)
    assert report["killed"] == 10
    assert report["pages_read"] > 100
    assert report["complaints"] == []


def leave_dead_writer(root, *, temporaries=3, reserved=b"\0" * 8):
    """What a killed writer leaves: its directory, not locked, with temporaries and a reservation."""
    place = root / "+hicache" / "writers" / "00ff00ff00ff00ff"
    place.mkdir(parents=True)
    for number in range(temporaries):
        (place / str(number)).write_bytes(b"half a page")
    if reserved is not None:
        (place / "record").write_bytes(reserved)
    return place


@pytest.mark.parametrize("reserved", [None, b"", b"\0" * 8, (123_456).to_bytes(8, "little")])
def test_what_a_dead_writer_left_is_removed_at_open_and_counted(open_store, root, reserved):
    place = leave_dead_writer(root, reserved=reserved)
    store = open_store()
    assert not place.exists()
    assert store.backend.stats().temporaries_cleaned == 3
    assert store.backend.stats().bytes_allocated == 0
    assert store.stored() == []


def test_a_tool_that_looks_cleans_up_after_the_dead_too(open_store, root):
    open_store().backend.close()
    place = leave_dead_writer(root)
    open_file(FileOptions(root=str(root)), OpenContext(namespace="0" * 32, inspecting=True)).close()
    assert not place.exists()


def test_a_living_writers_temporaries_stay(open_store, root):
    one = open_store()
    name, fd = one.backend._store.writer.temporary()
    os.write(fd, b"in the making")
    two = open_store(max_size=4096)
    two.set(*[two.key(n) for n in range(5)])
    place = root / "+hicache" / "writers" / one.backend._store.writer.name
    assert sorted(p.name for p in place.iterdir()) == sorted([name, "record"])
    assert two.backend.stats().temporaries_cleaned == 0
    os.close(fd)
    one.backend.close()
    assert not place.exists(), "closing takes its own temporaries along"


def test_a_writer_that_lives_long_cleans_up_after_others_when_it_evicts(open_store, root):
    store = open_store(max_size=4 * 4096, eviction_ratio=1.0)
    store.set(*[store.key(n) for n in range(4)])
    place = leave_dead_writer(root, reserved=(8192).to_bytes(8, "little"))
    assert store.set(store.key(4)) == [Outcome.STORED]
    assert not place.exists()
    assert store.backend.stats().temporaries_cleaned == 3
    assert len(store.stored()) == 4, "what the dead one had reserved costs no page"
    assert store.backend.stats().exact


def test_a_directory_beside_the_writers_with_a_foreign_file_stays(open_store, root):
    place = leave_dead_writer(root)
    (place / "notes.txt").write_text("mine")
    open_store()
    assert [p.name for p in place.iterdir()] == ["notes.txt"]


def test_pages_of_a_dead_process_are_there(root, open_store):
    code = (
        "import os, sys\n"
        "from hicache_core.types import IoContext, OpenContext\n"
        "from hicache_file.backend import open_file\n"
        "from hicache_file.options import FileOptions\n"
        "b = open_file(FileOptions(root=sys.argv[1]), OpenContext(namespace='0' * 32))\n"
        "b.batch_set(['ns/a'], [[memoryview(b'kept')]], IoContext())\n"
        "os._exit(9)\n"
    )
    assert subprocess.run([sys.executable, "-c", code, str(root)], check=False).returncode == 9
    store = open_store()
    page = bytearray(4)
    assert store.backend.batch_get(["ns/a"], [[memoryview(page)]], IoContext()) == [Outcome.HIT]
    assert page == b"kept"


def test_a_process_that_dies_between_removing_and_noting_it_is_found_out(open_store, monkeypatch):
    store = open_store()
    store.set(*[store.key(n) for n in range(10)])
    debit = Debit(store.backend._store.account)
    debit.__enter__()  # and dies here, with four pages gone
    for number in range(4):
        store.path(store.key(number)).unlink()
    other = open_store(max_size=1 << 30)
    assert other.backend.stats().files == 6
    assert other.backend.stats().exact
    debit.__enter__()
    other.delete(other.key(9))
    assert other.backend._store.space.totals().dirty, "whoever removes next sees that the one before never ended"
    assert other.backend.stats().files == 5
