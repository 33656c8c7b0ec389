"""Which inference engines are installed, which door fits each, and which versions a door was run against.

Nothing is imported: a distribution's metadata says the version, or, for an engine that is only on the path, a file
beside its package.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path

from hicache_core.plugin.environment import Finding


@dataclass(frozen=True, slots=True)
class EngineDoor:
    """A door of this library into an engine. tried: versions that it was run against; read: whose source was read.

    watch: a sentence on what shows first where another version does not fit.
    """

    package: str
    door: str
    tried: tuple[str, ...]
    read: tuple[str, ...] = ()
    guide: str = ""
    watch: str = ""


DOORS: dict[str, EngineDoor] = {
    door.package: door
    for door in (
        EngineDoor(
            "sglang",
            "--hicache-storage-backend dynamic, hicache_core.adapters.sglang:HiCacheDynamicStorage",
            ("0.5.12", "0.5.15.post1", "0.5.23"),
            ("0.5.8",),
            "docs/guides/sglang.md",
        ),
        EngineDoor(
            "vllm",
            '"type": "hicache" among the secondary_tiers of TieringOffloadingSpec',
            ("0.24.0", "0.27.0", "0.33.0"),
            guide="docs/guides/vllm.md",
            watch="vLLM declares this interface experimental: watch for failed tier jobs",
        ),
        EngineDoor(
            "lmcache",
            '--l2-adapter with "type": "plugin", hicache_core.adapters.lmcache:HiCacheL2Adapter',
            ("0.5.6",),
            guide="docs/guides/lmcache.md",
            watch="Watch for failed L2 tasks",
        ),
    )
}
"""By the engine's package."""


@dataclass(frozen=True, slots=True)
class FoundEngine:
    """An engine that is installed here. version: empty where nothing says it."""

    door: EngineDoor
    version: str

    @property
    def untried(self) -> str:
        """A sentence where the door was never run against this version; else empty."""
        if self.version.partition("+")[0] in self.door.tried:  # what follows names a build: 0.33.0+cu130
            return ""
        tried = ", ".join(self.door.tried)
        what = f"{self.door.package} {self.version}" if self.version else f"this version of {self.door.package}"
        return f"the door was never run against {what}; it was against {tried}. See {self.door.guide}"


def find_engine(package: str) -> FoundEngine | None:
    """The engine of that package, if it can be imported here; without importing it."""
    door = DOORS[package]
    try:
        return FoundEngine(door, importlib.metadata.version(package))
    except importlib.metadata.PackageNotFoundError:
        pass
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    return FoundEngine(door, _version_beside(spec.origin, spec.submodule_search_locations))


def examine_engines() -> list[Finding]:
    """One finding for each engine that is installed."""
    findings = []
    for package in sorted(DOORS):
        found = find_engine(package)
        if found is None:
            continue
        subject = f"engine {package}"
        message = f"{found.version or 'version unknown'}: use {found.door.door}"
        if found.untried:
            mend = f"run your own check, or install one of {', '.join(found.door.tried)}"
            findings.append(Finding("warn", subject, f"{message}; {found.untried}", mend))
        else:
            findings.append(Finding("ok", subject, message))
    return findings


def _version_beside(origin: str | None, places: object) -> str:
    """The version from a `version.py` or `_version.py` in the package, as most builds write one."""
    folders = [Path(origin).parent] if origin else [Path(str(place)) for place in places or ()]  # type: ignore[attr-defined]
    for folder in folders:
        for name in ("_version.py", "version.py"):
            try:
                text = (folder / name).read_text(encoding="utf-8")
            except OSError:
                continue
            match = re.search(r"^(?:__version__|version)\s*(?::.*?)?=.*?['\"]([0-9][^'\"]*)['\"]", text, re.MULTILINE)
            if match:
                return match.group(1)
    return ""
