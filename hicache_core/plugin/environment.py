"""What this machine and this Python offer: the environment's half of `hicache doctor`."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import resource
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hicache_core.errors import nearest
from hicache_core.plugin.sizes import format_size
from hicache_core.types import PLUGIN_API

GIB = 1 << 30
_MINIMUM = re.compile(r"^([A-Za-z0-9._-]+).*?>=\s*([0-9.]+)")
_FEW_FILES = 1024
_DEVICES = ("/dev/nvidiactl", "/dev/infiniband", "/dev/kfd")
"""Where one of these is there, host memory wants to be locked (pinned for a GPU, registered for RDMA)."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that doctor looked at. mend: what to do; empty where nothing is to be done."""

    level: Literal["ok", "warn", "error"]
    subject: str
    message: str
    mend: str = ""


def examine_environment(env: Mapping[str, str] | None = None) -> list[Finding]:
    """Python, libraries, processor, memory, limits and HICACHE_* variables. Imports no library that it asks about."""
    return [
        _python(),
        *_libraries(),
        _torch(),
        _processor(),
        _memory(),
        _locked_memory(),
        _open_files(),
        *_variables(os.environ if env is None else env),
    ]


def _python() -> Finding:
    version = platform.python_version()
    found = f"{platform.python_implementation()} {version} on {platform.system()} {platform.machine()}"
    if platform.system() != "Linux":
        return Finding("warn", "python", found, "hicache is built for and tested on Linux only")
    return Finding("ok", "python", found)


def _libraries() -> Iterator[Finding]:
    """hicache-core itself and what it requires, each with the version that is installed."""
    try:
        core = importlib.metadata.version("hicache-core")
        requirements = importlib.metadata.requires("hicache-core") or []
    except importlib.metadata.PackageNotFoundError:
        yield Finding(
            "error", "hicache-core", "runs from a source tree and is not installed", "pip install hicache-core"
        )
        return
    yield Finding("ok", "hicache-core", f"{core}, PLUGIN_API {PLUGIN_API}")
    for requirement in sorted(requirements, key=str.lower):
        found = _MINIMUM.match(requirement)
        if found and not _elsewhere(requirement):
            yield _library(found.group(1), found.group(2), requirement)


def _elsewhere(requirement: str) -> bool:
    """An extra's requirement, or an older Python's."""
    return "extra ==" in requirement or ("python_version <" in requirement and sys.version_info >= (3, 11))


def _library(name: str, minimum: str, requirement: str) -> Finding:
    mend = f"pip install --upgrade '{requirement.split(';', maxsplit=1)[0].strip()}'"
    version = _version(name)
    if version is None:
        return Finding("error", name, "not installed", mend)
    if _numbers(version) < _numbers(minimum):
        return Finding("error", name, f"{version} is older than {minimum}", mend)
    return Finding("ok", name, version)


def _torch() -> Finding:
    version = _version("torch")
    if version is None:
        message = "not installed; needed only by the torch device pool and the reference engine"
        return Finding("ok", "torch", message, "pip install 'hicache-core[torch]' where these are wanted")
    return Finding("ok", "torch", version)


def _processor() -> Finding:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    message = f"{usable} of {os.cpu_count()} cores usable"
    if usable < 2:
        return Finding("warn", "cpu", message, "give the process two cores: I/O threads run beside the engine's")
    return Finding("ok", "cpu", message)


def _memory() -> Finding:
    from hicache_core.pools.budget import memory_budget

    try:
        budget = memory_budget()
    except (OSError, KeyError, ValueError) as error:
        return Finding("warn", "memory", f"cannot be told: {error}", "give hicache_size instead of a ratio")
    message = f"{format_size(budget.available)} available of {format_size(budget.total)} ({budget.source})"
    if budget.available < GIB:
        return Finding("warn", "memory", message, "a host pool needs more; raise the limit or free memory")
    return Finding("ok", "memory", message)


def _locked_memory() -> Finding:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    message = "unlimited" if soft == resource.RLIM_INFINITY else f"{format_size(soft)} may be locked"
    devices = [device for device in _DEVICES if Path(device).exists()]
    if devices and soft != resource.RLIM_INFINITY:
        mend = f"set `ulimit -l unlimited`: {devices[0]} wants the host pool locked"
        return Finding("warn", "locked memory", message, mend)
    return Finding("ok", "locked memory", message)


def _open_files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    message = f"{soft} at once (hard limit {hard})"
    if soft < _FEW_FILES:
        return Finding("warn", "open files", message, "raise it with `ulimit -n`")
    return Finding("ok", "open files", message)


def _variables(env: Mapping[str, str]) -> Iterator[Finding]:
    from hicache_core.config.names import ENVIRONMENT_PREFIX, OTHER_VARIABLES, VARIABLES

    known = [*VARIABLES, *OTHER_VARIABLES]
    for name in sorted(n for n in env if n.startswith(ENVIRONMENT_PREFIX) and n not in known):
        near = nearest(name, known, cutoff=0.8)
        yield Finding("warn", name, "no setting of this name", f"did you mean {near}?" if near else "unset it")


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    """(1, 26) of "1.26": the leading numbers, enough for a minimum."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in found.group().split(".")) if found else ()
