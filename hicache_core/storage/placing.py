"""Which CPUs the workers of a session run on, where its owner wants to say so.

Worth it on machines of several NUMA nodes, whose host pools lie on one of them, and on virtual machines whose kernel
gathers woken threads on one CPU while another is idle. Threads that a client starts in a worker inherit its CPU.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence

from hicache_core.errors import ConfigError

_log = logging.getLogger(__name__)


def check_cpus(cpus: Sequence[int]) -> None:
    """Raises ConfigError for CPUs that this process may not use, or where threads cannot be kept on one."""
    if not cpus:
        return
    if sys.platform != "linux":
        raise ConfigError(
            f"worker_cpus: threads can be kept on a CPU on Linux only, this is {sys.platform}; leave it out"
        )
    allowed = sorted(os.sched_getaffinity(0))
    wrong = [cpu for cpu in cpus if type(cpu) is not int or cpu not in allowed]
    if wrong:
        raise ConfigError(
            f"worker_cpus: CPU {wrong[0]!r} is none that this process may use; those are {_ranges(allowed)}"
        )


def stay_on(cpu: int) -> None:
    """Keep the calling thread on a CPU. Where that is refused by now it runs anywhere, and a warning says so."""
    try:
        os.sched_setaffinity(0, {cpu})
    except OSError as error:
        _log.warning("worker_cpus: a worker does not stay on CPU %d (%s)", cpu, error)


def _ranges(numbers: Sequence[int]) -> str:
    """0-3, 8 for 0, 1, 2, 3, 8."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(lo) if lo == hi else f"{lo}-{hi}" for lo, hi in runs)
