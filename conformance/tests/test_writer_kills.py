"""Kills of writers: a sound store has nothing to complain of, a torn page is found, the audit is heard."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

KILL = """
import json, sys
from dataclasses import asdict
from hicache_conformance.writer_kills import kill_writers
import broken_files, tiny_files

backend = getattr({module}, sys.argv[1])
opened = lambda ctx: backend(tiny_files.TinyOptions(root=sys.argv[2]), ctx)
complaints = sys.argv[3:]
report = kill_writers(opened, lambda store: complaints, sizes=[1000, 300_000], rounds=12)
print(json.dumps(asdict(report)), report.failed)
"""


def killed(backend, root, *complaints, module="broken_files"):
    """(the report, whether it failed); complaints: what the audit says after each kill."""
    command = [sys.executable, "-c", KILL.format(module=module), backend, str(root), *complaints]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parent)
    assert done.returncode == 0, done.stderr
    report, _, failed = done.stdout.strip().rpartition(" ")
    return json.loads(report), failed == "True"


def test_a_sound_store_has_nothing_torn(tmp_path):
    report, failed = killed("TinyFiles", tmp_path, module="tiny_files")
    assert (report["killed"], report["complaints"], failed) == (12, [], False)
    assert report["pages_read"] > 100


@pytest.mark.parametrize("backend", ["WritesInPlace", "ReservesInPlace"])
def test_a_torn_page_is_complained_of(backend, tmp_path):
    report, failed = killed(backend, tmp_path)
    assert failed
    assert report["killed"] == 12
    assert all("torn page" in complaint for complaint in report["complaints"])


def test_what_the_audit_says_is_told_with_the_round(tmp_path):
    report, failed = killed("TinyFiles", tmp_path, "a slot is lost", module="tiny_files")
    assert failed
    assert report["complaints"] == [f"round {number}: a slot is lost" for number in range(12)]
