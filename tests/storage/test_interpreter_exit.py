"""An interpreter that ends with a session open: calls in the store come home first, and a stuck one holds nobody."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SCRIPT = """
import atexit, os, sys, threading

done = threading.Event()
atexit.register(lambda: print("came home" if done.is_set() else "inside"))  # the first one in is called last

from hicache_core.namespace import Identity
from hicache_core.storage import open_session, workers

inside, go, slow = threading.Event(), threading.Event(), threading.Event()


class Store:
    def __init__(self, options, ctx): pass
    def batch_exists(self, keys, ctx): return 0
    def batch_get(self, keys, pages, ctx): raise NotImplementedError
    def close(self): pass

    def batch_set(self, keys, pages, ctx):
        from hicache_core.types import Outcome
        inside.set()
        go.wait()
        slow.wait(0.3)
        done.set()
        return [Outcome.STORED] * len(keys)


session = open_session(
    {"backend": "dynamic", "options": {"module": "__main__", "class_name": "Store"}},
    identity=Identity("m", "declared:w", "bfloat16", 16, "mha", 1, 1, 8),
)
handles = [session.submit_set([f"{n:064x}"], [[memoryview(bytes(64))]]) for n in range(20)]
inside.wait()
if sys.argv[1] == "slow":
    atexit.register(go.set)
else:
    workers._EXIT_PATIENCE = 0.1
if sys.argv[1] == "child":
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        os._exit(0)
    workers._EXIT_PATIENCE = 3600.0  # threads of its parent are nothing to wait for
"""


@pytest.mark.parametrize(("how", "said"), [("slow", "came home"), ("stuck", "inside"), ("child", "inside")])
def test_calls_inside_come_home_before_the_interpreter_ends(how: str, said: str) -> None:
    """A thread that comes back from a client's C++ into an interpreter that is going down aborts the process."""
    environment = os.environ | {"PYTHONWARNINGS": "ignore::DeprecationWarning"}  # 3.12 on: fork beside threads
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT, how], capture_output=True, text=True, timeout=60, env=environment
    )
    assert (ended.returncode, ended.stdout.strip()) == (0, said), ended.stderr
