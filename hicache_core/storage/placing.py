"""Which CPUs the workers of a session run on, where its owner wants to say so.

Worth it on machines of several NUMA nodes, whose host pools lie on one of them, and on virtual machines whose kernel
gathers woken threads on one CPU while another is idle. Threads that a client starts in a worker inherit its CPU.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress

from hicache_core.errors import ConfigError

_log = logging.getLogger(__name__)
_CPUS = 8192
"""More than Linux is built for."""


def check_cpus(cpus: Sequence[int]) -> None:
    """Raises ConfigError for CPUs that this process may not use, or where threads cannot be kept on one."""
    if not cpus:
        return
    if sys.platform != "linux":
        raise ConfigError(
            f"worker_cpus: threads can be kept on a CPU on Linux only, this is {sys.platform}; leave it out"
        )
    allowed = _of_this_process()
    wrong = [cpu for cpu in cpus if type(cpu) is not int or cpu not in allowed]
    if wrong:
        raise ConfigError(
            f"worker_cpus: CPU {wrong[0]!r} is none that this process may use; name some of {_ranges(allowed)}, "
            "or leave it out"
        )


def stay_on(cpu: int) -> None:
    """Keep the calling thread on a CPU. Where that is refused by now it runs anywhere, and a warning says so."""
    try:
        os.sched_setaffinity(0, {cpu})
    except OSError as error:
        _log.warning("worker_cpus: a worker does not stay on CPU %d (%s)", cpu, error)


def _of_this_process() -> list[int]:
    """What the system lets a thread of this process run on, also where the calling one is kept on fewer: an engine
    that keeps its own threads on some CPUs may want ours on others."""
    found: list[int] = []

    def look() -> None:
        with suppress(OSError):
            os.sched_setaffinity(0, range(_CPUS))  # the system leaves out those that are not ours
        found.extend(os.sched_getaffinity(0))

    thread = threading.Thread(target=look, name="hicache-cpus")
    thread.start()
    thread.join()
    return sorted(found)


def _ranges(numbers: Sequence[int]) -> str:
    """0-3, 8 for 0, 1, 2, 3, 8."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(lo) if lo == hi else f"{lo}-{hi}" for lo, hi in runs)
