"""The extra config of a storage backend: its options, and the settings that SGLang keeps among them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hicache_core.config.corrections import Correction
from hicache_core.config.documents import parse_document
from hicache_core.errors import OptionError, nearest

RESERVED = (
    "prefetch_threshold",
    "prefetch_timeout_base",
    "prefetch_timeout_per_ki_token",
    "prefetch_timeout_max",
    "tp_lcm_size",
)
"""Keys that are settings of the hierarchy, not options of the backend."""

_ENGINE_KEYS = ("interface_v1", "hicache_storage_pass_prefix_keys", "allocator")
"""Keys of SGLang that are no backend's options either."""


def named_values(value: Any, where: str) -> dict[str, Any]:
    """A mapping of option names to values, as a file holds it in another. Raises OptionError for anything else."""
    if not isinstance(value, Mapping):
        raise OptionError(f"{where}: must be a mapping of option names to values, got {type(value).__name__}")
    for name in value:
        if not isinstance(name, str):
            raise OptionError(f"{where}: option names are text, got {name!r}")
    return dict(value)


def split_extra_config(
    document: str | Mapping[str, Any], where: str
) -> tuple[dict[str, Any], dict[str, Any], list[Correction]]:
    """(settings, backend options, corrections) of a document: a mapping, inline text, or `@FILE`.

    Raises ConfigError for text that cannot be read, OptionError for a key that nearly is a reserved one or that
    would have no effect.
    """
    mapping = parse_document(document, where) if isinstance(document, str) else named_values(document, where)
    settings: dict[str, Any] = {}
    options: dict[str, Any] = {}
    corrections: list[Correction] = []
    for key, value in mapping.items():
        name = key.replace("-", "_")
        if name in RESERVED:
            settings[name] = value
        elif name in _ENGINE_KEYS:
            corrections += _engine_key(name, value, where)
        else:
            options[key] = value
    return settings, options, corrections


def check_near_reserved(option: str, own: frozenset[str], where: str) -> None:
    """Refuse an option that is not the backend's own and nearly a reserved key: it would be lost on the backend."""
    name = option.replace("-", "_")
    near = nearest(name, RESERVED, cutoff=0.9)
    if near and name not in own:
        raise OptionError(f"{where}: unknown option {option!r}; did you mean {near!r}?")


def _engine_key(name: str, value: Any, where: str) -> list[Correction]:
    if name == "interface_v1" and value in (True, 1):
        why = "v1 hooks are used wherever a backend has them; nothing has to be turned on"
        return [Correction(name, value, None, why)]
    if name == "hicache_storage_pass_prefix_keys" and value in (False, 0):
        return []
    raise OptionError(f"{where}: {name}={value!r} is not built: it would have no effect here; leave it out")
