"""How much memory this process may still take: the machine's, and every cgroup above it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """Bytes that can be taken now, of how many, and what sets the limit."""

    available: int
    total: int
    source: str


def default_reserve(budget: MemoryBudget) -> int:
    """Bytes left to everything else: an eighth of the machine, from 1 GiB to 10 GiB (which is SGLang's, always)."""
    return min(10 * GIB, max(GIB, budget.total // 8))


def memory_budget(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> MemoryBudget:
    """The tightest of MemAvailable and the cgroup limits (v1 and v2); page cache in a cgroup counts as free."""
    budget = _machine(proc)
    for directory, limit_name, used_name in _cgroup_directories(proc, cgroups):
        limit = _number(directory / limit_name)
        used = _number(directory / used_name)
        if limit is None or used is None or limit >= budget.total:
            continue
        room = max(0, limit - used + _reclaimable(directory))
        if room < budget.available:
            budget = MemoryBudget(room, limit, f"cgroup {directory}")
    return budget


def _machine(proc: Path) -> MemoryBudget:
    numbers = {}
    for line in (proc / "meminfo").read_text().splitlines():
        name, _, rest = line.partition(":")
        fields = rest.split()
        if len(fields) == 2 and fields[1] == "kB":
            numbers[name] = int(fields[0]) * 1024
    return MemoryBudget(numbers["MemAvailable"], numbers["MemTotal"], "MemAvailable")


def _cgroup_directories(proc: Path, cgroups: Path) -> list[tuple[Path, str, str]]:
    """Own group and its ancestors, as (directory, name of the limit, name of the usage)."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            bases, names = [cgroups, cgroups / "unified"], ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            bases, names = [cgroups / "memory"], ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        for base in bases:
            own = base / path.lstrip("/")
            found += [(up, *names) for up in (own, *own.parents) if up == base or base in up.parents]
    return found


def _reclaimable(directory: Path) -> int:
    """Bytes of page cache that the kernel drops before it refuses memory."""
    try:
        lines = (directory / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    stat = dict(line.split()[:2] for line in lines if len(line.split()) >= 2)
    both = (
        ("total_inactive_file", "total_active_file")
        if "total_inactive_file" in stat
        else (
            "inactive_file",
            "active_file",
        )
    )
    return sum(int(stat.get(name, 0)) for name in both)


def _number(path: Path) -> int | None:
    """An integer file's value; None where there is no limit ("max") or no file."""
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
