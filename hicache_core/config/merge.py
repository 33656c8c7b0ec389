"""Layers of settings put on one another, each value with its source."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from hicache_core.config.corrections import Correction, correct, report
from hicache_core.config.extra import check_near_reserved, named_values, split_extra_config
from hicache_core.config.model import COMPAT_DEFAULTS, HiCacheConfig
from hicache_core.config.names import EXTRA_CONFIG, FIELDS, VARIABLES, field_name
from hicache_core.config.resolved import ResolvedConfig, Source
from hicache_core.config.validation import validate
from hicache_core.errors import OptionError
from hicache_core.plugin.discovery import find_backend
from hicache_core.plugin.options import convert_value
from hicache_core.plugin.select import BackendChoice, choose_backend
from hicache_core.types import BackendSpec

_BACKEND, _OPTIONS = "hicache_storage_backend", "hicache_storage_backend_options"


class Merge:
    """Values so far, with their sources; later layers replace earlier ones."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.sources: dict[str, Source] = {}
        self.options: dict[str, Any] = {}
        self.option_sources: dict[str, Source] = {}
        self.options_may_be_text = False
        self.overridden: dict[str, list[tuple[Any, Source]]] = {}
        self.corrections: list[Correction] = []
        self.unknown_variables: list[str] = []

    def layer(self, mapping: Mapping[str, Any], source_of: Callable[[str], Source], *, strict: bool) -> None:
        """Take one layer. source_of: (spelling as given) -> Source."""
        seen: dict[str, Source] = {}
        pending: dict[str, tuple[Any, Source]] = {}
        options: list[tuple[dict[str, Any], Source]] = []
        for given, value in mapping.items():
            source = source_of(given)
            name = VARIABLES.get(given) or field_name(given, str(source))
            for found, inner in self._expand(name, value, source, options):
                if found in seen:
                    raise OptionError(f"{found} is given twice: by {seen[found]} and by {source}")
                seen[found] = source
                pending[found] = (self._converted(found, inner, source, strict), source)
        for name, (value, source) in pending.items():
            self._set(name, value, source)
        for taken, source in options:
            self.take_options(taken, source)

    def _expand(
        self, name: str, value: Any, source: Source, options: list[tuple[dict[str, Any], Source]]
    ) -> list[tuple[str, Any]]:
        """The settings that one entry sets; backend options are put aside."""
        if name == EXTRA_CONFIG:
            if not isinstance(value, str | Mapping):
                raise OptionError(f"{source}: must be a mapping or text, got {type(value).__name__}")
            settings, own, corrections = split_extra_config(value, str(source))
            options.append((own, source))
            self.corrections += corrections
            return list(settings.items())
        if name == _OPTIONS:
            options.append((dict(convert_value(FIELDS[name], value, str(source), strict=False)), source))
            return []
        if name == _BACKEND and isinstance(value, Mapping):
            if not value.keys() <= {"backend", "options", "url"} or ("backend" in value) == ("url" in value):
                raise OptionError(f'{source}: give either {{"backend": NAME, "options": {{…}}}} or {{"url": URL}}')
            if value.get("options"):
                options.append((named_values(value["options"], f"{source}: options"), source))
            return [(name, value.get("backend", value.get("url")))]
        return [(name, value)]

    def _converted(self, name: str, value: Any, source: Source, strict: bool) -> Any:
        return convert_value(FIELDS[name], value, f"{source}: {name}", strict=strict)

    def _set(self, name: str, value: Any, source: Source) -> None:
        if name in self.values:
            self.overridden.setdefault(name, []).append((self.values[name], self.sources[name]))
            if name == _BACKEND and self.values[name] != value:  # options of another backend mean nothing here
                self.options.clear()
                self.option_sources.clear()
        self.values[name], self.sources[name] = value, source

    def take_options(self, options: Mapping[str, Any], source: Source, *, text: bool = False) -> None:
        """Backend options of one source, over those of earlier ones. text: the values may be text."""
        for name, value in options.items():
            self.options[name], self.option_sources[name] = value, source
        self.options_may_be_text |= text

    def finish(self, check_backend: bool) -> ResolvedConfig:
        """Fill in defaults, refuse what cannot work, choose the backend, correct what cannot go together."""
        given = set(self.values)
        self._fill_defaults()
        self.values[_OPTIONS] = dict(self.options)
        self.sources[_OPTIONS] = next(iter(self.option_sources.values()), Source("default"))
        config = HiCacheConfig(**self.values)
        validate(config, given | ({_OPTIONS} if self.options else set()))
        backend = self._choose(config) if check_backend and config.hicache_storage_backend else None
        corrections = self.corrections + correct(
            config, backend.capabilities if backend else None, backend.spec.name if backend else ""
        )
        for correction in corrections:
            if correction.field in FIELDS:
                old = (correction.old, self.sources[correction.field])
                self.overridden.setdefault(correction.field, []).append(old)
                self.sources[correction.field] = Source("correction")
        report(corrections)
        return ResolvedConfig(
            config,
            {name: self.sources[name] for name in FIELDS},
            corrections,
            backend,
            self.option_sources,
            self.overridden,
            self.unknown_variables,
        )

    def _fill_defaults(self) -> None:
        defaults = HiCacheConfig()
        compat = self.values.get("compat", defaults.compat)
        for name in FIELDS:
            if name in self.values:
                continue
            sized = name == "hicache_ratio" and bool(self.values.get("hicache_size"))  # a size makes a ratio idle
            if name in COMPAT_DEFAULTS[compat] and not sized:
                self.values[name], self.sources[name] = COMPAT_DEFAULTS[compat][name], Source("compat", compat)
            else:
                self.values[name], self.sources[name] = getattr(defaults, name), Source("default")

    def _choose(self, config: HiCacheConfig) -> BackendChoice:
        name = config.hicache_storage_backend or ""
        if "://" not in name:
            own = _own_options(find_backend(name))
            for option, source in self.option_sources.items():
                check_near_reserved(option, own, str(source))
        choice = choose_backend(name, self.options or None, strict=not self.options_may_be_text)
        config.hicache_storage_backend_options = _typed(choice, self.options)
        return choice


def _own_options(spec: BackendSpec) -> frozenset[str]:
    return frozenset(f.name for f in msgspec.structs.fields(spec.options))


def _typed(choice: BackendChoice, given: Mapping[str, Any]) -> dict[str, Any]:
    """The given options with their parsed values, so that text from a command line is text no longer."""
    own = _own_options(choice.spec) - {getattr(choice.spec.options, "PASSTHROUGH", "")}
    aliases = getattr(choice.spec.options, "ALIASES", {})
    typed = {}
    for name, value in given.items():
        spelled = name.replace("-", "_")
        spelled = aliases.get(spelled, spelled)
        typed[spelled if spelled in own else name] = getattr(choice.options, spelled) if spelled in own else value
    return typed
