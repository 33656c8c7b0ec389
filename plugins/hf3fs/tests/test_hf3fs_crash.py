"""What a process that dies at work leaves behind: no torn page, and nothing that stays."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hicache_core.types import Outcome

KILL_WRITER = Path(__file__).with_name("kill_hf3fs_writer.py")


def run_killer(root, *arguments):
    pytest.importorskip("hicache_conformance", reason="pip install hicache-conformance")
    command = [sys.executable, str(KILL_WRITER), str(root), "--rounds", "8", *arguments]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    report = json.loads(run.stdout)
    assert report["killed"] == 8
    assert report["pages_read"] > 50
    assert report["complaints"] == []


@pytest.mark.parametrize("limits", [[], ["--max-size", "4000000"]], ids=["no cap", "capped"])
def test_kill_9_leaves_no_torn_page_and_nothing_reserved(root, limits):
    run_killer(root, *limits)


def test_kill_9_of_clients_of_a_service(service):
    options = service.options
    run_killer(options["root"], "--url", options["metadata_url"], "--token", options["metadata_token"])


DIE_WITH_SLOTS = """
import os, sys
from hicache_core.types import OpenContext
from hicache_hf3fs.backend import open_hf3fs
from hicache_hf3fs.options import Hf3fsOptions
backend = open_hf3fs(Hf3fsOptions(root=sys.argv[1]), OpenContext(namespace="0" * 32))
backend._store.index.reserve(["ns/a", "ns/b"], [4096, 8192], replace=False, may_hollow=True)
os._exit(9)
"""


def test_what_the_dead_had_reserved_is_taken_back_and_the_livings_is_not(open_store, root):
    living = open_store()
    held = living.backend._store.index.reserve(["ns/c"], [4096], replace=False, may_hollow=True)
    assert subprocess.run([sys.executable, "-c", DIE_WITH_SLOTS, str(root)], check=False).returncode == 9
    assert living.totals.slots_reserved == 3
    assert len(os.listdir(root / "owners")) == 2
    other = open_store()
    assert other.totals.slots_reserved == 1
    assert len(os.listdir(root / "owners")) == 2, "the living one's and our own"
    other.set(*[other.key(n) for n in range(4)])
    assert held.slots[0] not in [row.slot for row in other.backend._store.index.lookup(other.stored()).rows]
    living.backend.close()
    assert other.totals.slots_reserved == 0


def test_a_process_that_lives_long_takes_back_what_others_left(open_store, root):
    store = open_store(max_size=6 * 4096)
    assert subprocess.run([sys.executable, "-c", DIE_WITH_SLOTS, str(root)], check=False).returncode == 9
    assert store.set(*[store.key(n) for n in range(6)]) == [Outcome.STORED] * 6
    assert store.totals.slots_reserved == 0


def test_a_forked_child_holds_nothing_of_its_parents(open_store, root):
    store = open_store()
    store.set(store.key(1))
    pid = os.fork()
    if not pid:
        try:
            names = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if fd.isdigit()]
        except OSError:
            names = []
        os._exit(any("/owners/" in name or "/slots/" in name for name in names))
    assert os.waitpid(pid, 0)[1] == 0
    assert store.get(store.key(1))[0] is Outcome.HIT
    assert store.set(store.key(2)) == [Outcome.STORED]
