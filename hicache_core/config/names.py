"""One setting, three spellings: field name, flag, environment variable."""

from __future__ import annotations

from typing import Any

import msgspec

from hicache_core.config.model import HiCacheConfig
from hicache_core.errors import OptionError, nearest

FIELDS: dict[str, Any] = {field.name: field.type for field in msgspec.structs.fields(HiCacheConfig)}
"""Type of every setting, by name."""

EXTRA_CONFIG = "hicache_storage_backend_extra_config"
"""Not a setting of its own: a document that holds backend options and some settings."""

ALIASES = {
    "enable_hicache": "enable_hierarchical_cache",
    "radix_eviction_policy": "eviction_policy",
}
"""Other spellings that SGLang takes."""

ENVIRONMENT_PREFIX = "HICACHE_"
CONFIG_VARIABLE = "HICACHE_CONFIG"
OTHER_VARIABLES = frozenset({CONFIG_VARIABLE, "HICACHE_DISABLE_PLUGINS"})
"""Variables that are read elsewhere."""


def flag(name: str) -> str:
    """`--hicache-ratio` for `hicache_ratio`."""
    return "--" + name.replace("_", "-")


def variable(name: str) -> str:
    """`HICACHE_RATIO` for `hicache_ratio`, `HICACHE_PAGE_SIZE` for `page_size`."""
    return ENVIRONMENT_PREFIX + name.removeprefix("hicache_").upper()


VARIABLES = {variable(name): name for name in (*FIELDS, EXTRA_CONFIG)}
"""Setting by environment variable."""


def field_name(given: str, where: str) -> str:
    """The setting that a spelling means. Raises OptionError with the nearest one."""
    name = given.removeprefix("--").replace("-", "_")
    name = ALIASES.get(name, name)
    if name in FIELDS or name == EXTRA_CONFIG:
        return name
    known = [*FIELDS, EXTRA_CONFIG, *ALIASES]
    short = {other.removeprefix("hicache_"): other for other in known}
    near = nearest(name, known) or short.get(nearest(name, short) or "")
    hint = f"; did you mean {near!r}?" if near else f". Options: {', '.join(FIELDS)}."
    raise OptionError(f"{where}: unknown option {given!r}{hint}")
