"""A configuration that can be used, and where each of its values came from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from hicache_core.config.corrections import Correction
from hicache_core.config.model import HiCacheConfig
from hicache_core.plugin.select import BackendChoice


@dataclass(frozen=True, slots=True)
class Source:
    """Where a value came from: `where` is the file, the variable or the flag."""

    kind: Literal["default", "compat", "file", "environment", "flag", "correction"]
    where: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.where}".rstrip()


@dataclass(slots=True)
class ResolvedConfig:
    """A configuration that can be used. sources: of every setting; backend: the chosen one, options parsed.

    option_sources: of the backend options. overridden: values that a later source replaced, oldest first.
    unknown_variables: HICACHE_* variables that no one here reads.
    """

    config: HiCacheConfig
    sources: dict[str, Source]
    corrections: list[Correction] = field(default_factory=list)
    backend: BackendChoice | None = None
    option_sources: dict[str, Source] = field(default_factory=dict)
    overridden: dict[str, list[tuple[Any, Source]]] = field(default_factory=dict)
    unknown_variables: list[str] = field(default_factory=list)
