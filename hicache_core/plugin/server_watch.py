"""Ends a throwaway server whose starter has died without ending it (SIGKILL, the OOM killer), on Linux.

This file is also the program that does it: a process beside the server that waits for the end of either. It waits on
pidfds, which name processes: a pid that the kernel gives away again is no danger, and the starter's threads may come
and go (the parent-death signal of prctl would follow the thread that started the server). It is run by its path,
without site-packages, so it imports the standard library alone.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from contextlib import ExitStack
from typing import TypeAlias

Watch: TypeAlias = "subprocess.Popen[bytes]"
"""The process that watches: whoever has ended the server kills it and waits for it."""

PATIENCE_SECONDS = 10.0
"""Between SIGTERM and SIGKILL, as ServerProcess.stop has it."""


def start_watch(server: int, *, starter: int | None = None, patience: float = PATIENCE_SECONDS) -> Watch | None:
    """Have `server`, a child that was not waited for yet, ended when `starter` (this process) is gone.

    None where the system has no pidfds (other than Linux, a kernel before 5.3, a Python built for one, a sandbox that
    forbids them), or no room for one more process: a server is of use without its watch.
    """
    if sys.platform != "linux" or not (hasattr(os, "pidfd_open") and hasattr(signal, "pidfd_send_signal")):
        return None
    with ExitStack() as undo:
        fds = []
        for pid in (starter or os.getpid(), server):
            try:
                fds.append(os.pidfd_open(pid))
            except OSError:
                return None
            undo.callback(os.close, fds[-1])
        try:
            return subprocess.Popen(
                [sys.executable, "-I", "-S", __file__, *map(str, fds), str(patience)],
                cwd="/",
                pass_fds=fds,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # what is sent to the starter's whole group does not end it too
            )
        except OSError:
            return None


def main(starter: int, server: int, patience: float) -> None:
    """Wait for the end of either process (pidfds); where it was the starter's, end the server."""
    if sys.platform != "linux" or _ended(starter, server, seconds=None) != starter:
        return
    for number, seconds in ((signal.SIGTERM, patience), (signal.SIGKILL, None)):
        try:
            signal.pidfd_send_signal(server, number)
        except ProcessLookupError:
            return
        if _ended(server, seconds=seconds) == server:
            return


def _ended(*fds: int, seconds: float | None) -> int | None:
    """Whichever process has ended, the last one named if several have; None where none has in time."""
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    ready = dict(poll.poll(None if seconds is None else seconds * 1000))
    return next((fd for fd in reversed(fds) if fd in ready), None)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
