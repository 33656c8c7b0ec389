"""Settings that cannot go together as given, and what is made of them. Each correction is reported once."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from hicache_core.config.model import HiCacheConfig
from hicache_core.errors import ConfigError
from hicache_core.types import Capabilities

_log = logging.getLogger(__name__)
_reported: set[str] = set()


@dataclass(frozen=True, slots=True)
class Correction:
    """A setting whose given value was replaced. new None: it was left out."""

    field: str
    old: Any
    new: Any
    why: str

    def __str__(self) -> str:
        change = f"{self.old} is left out" if self.new is None else f"{self.old} becomes {self.new}"
        return f"{self.field}: {change}: {self.why}"


def correct(config: HiCacheConfig, capabilities: Capabilities | None = None, backend: str = "") -> list[Correction]:
    """Apply the compatibility rules to `config` in place and say what changed, each change once.

    capabilities: of the storage backend, where one is configured; backend: its name. Raises ConfigError where the
    backend takes no layout that the rules could choose.
    """
    corrections: list[Correction] = []

    def change(field: str, new: Any, why: str) -> None:
        corrections.append(Correction(field, getattr(config, field), new, why))
        setattr(config, field, new)

    if config.hicache_size and config.hicache_ratio is not None:
        change("hicache_ratio", None, f"hicache_size ({config.hicache_size:g} GB) decides the host pool's size")
    layouts = capabilities.layouts if capabilities is not None else None
    if layouts is not None and config.hicache_mem_layout == "layer_first" and "layer_first" not in layouts:
        change("hicache_mem_layout", _instead_of_layer_first(config, layouts), f"{backend} cannot take layer_first")
    if config.hicache_mem_layout == "page_first_direct" and config.hicache_io_backend == "kernel":
        change("hicache_io_backend", "direct", "page_first_direct is copied page by page, which kernel cannot")
    if config.hicache_mem_layout == "page_first" and config.hicache_io_backend == "direct":
        change("hicache_mem_layout", "page_first_direct", "direct needs each layer of a page in one piece")
    if layouts is not None and config.hicache_mem_layout not in layouts:
        raise ConfigError(
            f"hicache_mem_layout {config.hicache_mem_layout!r}: backend {backend!r} takes only {', '.join(layouts)}"
        )
    return corrections


def _instead_of_layer_first(config: HiCacheConfig, layouts: tuple[str, ...]) -> str:
    """page_first for kernel, page_first_direct for direct; the other one where the backend takes only that."""
    choices = ["page_first", "page_first_direct"]
    if config.hicache_io_backend == "direct":
        choices.reverse()
    return next((layout for layout in choices if layout in layouts), choices[0])


def report(corrections: Iterable[Correction]) -> list[Correction]:
    """Log those that this process has not logged before, as warnings; return them."""
    fresh = [c for c in corrections if str(c) not in _reported]
    for correction in fresh:
        _reported.add(str(correction))
        _log.warning("%s", correction)
    return fresh
