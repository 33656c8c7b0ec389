"""Settings from defaults, file, environment and flags, each later one over the earlier, each with its source."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hicache_core.config.documents import read_document
from hicache_core.config.merge import Merge
from hicache_core.config.names import CONFIG_VARIABLE, ENVIRONMENT_PREFIX, OTHER_VARIABLES, VARIABLES, flag
from hicache_core.config.resolved import ResolvedConfig, Source
from hicache_core.errors import OptionError, nearest

__all__ = ["ResolvedConfig", "Source", "resolve"]


def resolve(
    flags: Mapping[str, Any] | None = None,
    *,
    backend_options: Mapping[str, Any] | None = None,
    file: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    check_backend: bool = True,
) -> ResolvedConfig:
    """The configuration by defaults < file < environment < flags.

    flags: by field name or flag spelling; None values are not given; text is converted. backend_options: as from
    `-o NAME=VALUE`, text or typed. file: JSON, TOML or YAML by its suffix (default: the variable HICACHE_CONFIG).
    env: default os.environ. check_backend: find the backend, parse its options, apply its layout rules.
    Raises ConfigError, OptionError or UnknownNameError that names what is wrong and where it was given; PluginError
    where the backend is installed but broken.
    """
    env = os.environ if env is None else env
    merge = Merge()
    path = file if file is not None else env.get(CONFIG_VARIABLE)
    if path:
        merge.layer(read_document(Path(path)), lambda given: Source("file", str(path)), strict=True)
    merge.layer(_from_environment(env, merge), lambda given: Source("environment", given), strict=False)
    given_flags = {name: value for name, value in (flags or {}).items() if value is not None}
    merge.layer(given_flags, lambda given: Source("flag", flag(given.removeprefix("--"))), strict=False)
    if backend_options:
        merge.take_options(backend_options, Source("flag", "-o"), text=True)
    return merge.finish(check_backend)


def _from_environment(env: Mapping[str, str], merge: Merge) -> dict[str, str]:
    """The settings among the variables. One that is nearly a setting's is an error; others are only listed."""
    found = {}
    for name in sorted(n for n in env if n.startswith(ENVIRONMENT_PREFIX) and n not in OTHER_VARIABLES):
        if name in VARIABLES:
            found[name] = env[name]
            continue
        near = nearest(name, VARIABLES, cutoff=0.85)
        if near:
            raise OptionError(f"environment: unknown variable {name}; did you mean {near}?")
        merge.unknown_variables.append(name)
    return found
