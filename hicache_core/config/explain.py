"""Every setting with its value, where it came from, and what was corrected: rows for `hicache config explain`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hicache_core.config.model import HiCacheConfig
from hicache_core.config.names import flag, variable
from hicache_core.config.resolved import ResolvedConfig
from hicache_core.plugin.descriptions import describe_options
from hicache_core.plugin.redaction import HIDDEN, is_secret, redact, redact_url

_OPTIONS = "hicache_storage_backend_options"


@dataclass(frozen=True, slots=True)
class ExplainRow:
    """One setting, fit to be shown: secrets are hidden.

    source: where the value came from; overridden: earlier values with theirs; correction: why it was changed.
    """

    name: str
    value: Any
    source: str
    help: str
    flag: str = ""
    variable: str = ""
    overridden: tuple[str, ...] = ()
    correction: str = ""


def explain(resolved: ResolvedConfig) -> list[ExplainRow]:
    """One row per setting in the order of the model; the backend's options follow as `backend.NAME`."""
    corrections = {c.field: str(c) for c in resolved.corrections}
    rows = []
    for option in describe_options(HiCacheConfig):
        name = option.name
        if name == _OPTIONS:
            continue
        rows.append(
            ExplainRow(
                name,
                _shown(name, getattr(resolved.config, name)),
                str(resolved.sources[name]),
                option.help,
                flag(name),
                variable(name),
                tuple(f"{_shown(name, value)} ({source})" for value, source in resolved.overridden.get(name, [])),
                corrections.pop(name, ""),
            )
        )
    rows += [ExplainRow(name, None, "correction", "", correction=text) for name, text in corrections.items()]
    return rows + _backend_rows(resolved)


def _backend_rows(resolved: ResolvedConfig) -> list[ExplainRow]:
    choice = resolved.backend
    if choice is None:
        shown = redact(resolved.config.hicache_storage_backend_options)
        return [ExplainRow(f"backend.{n}", v, str(resolved.option_sources[n]), "") for n, v in shown.items()]
    given = {name.replace("-", "_"): source for name, source in resolved.option_sources.items()}
    by_url = "url" if choice.source.startswith("url") else "default"
    values = choice.shown_options()
    return [
        ExplainRow(
            f"backend.{option.name}",
            HIDDEN if option.secret and values[option.name] else values[option.name],
            str(given.get(option.name, by_url if values[option.name] != option.default else "default")),
            option.help,
        )
        for option in describe_options(choice.spec.options)
    ]


def _shown(name: str, value: Any) -> Any:
    if is_secret(name, value) and isinstance(value, str):
        return HIDDEN
    return redact_url(value) if isinstance(value, str) and "://" in value else value
