"""Choosing a backend: by `{"backend": …, "options": {…}}` or by one URL, exactly one of the two."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import msgspec

from hicache_core.errors import (
    ConfigError,
    HiCacheError,
    MissingDependencyError,
    OpenError,
    OptionError,
    PluginError,
    told,
)
from hicache_core.plugin.checks import check_hooks
from hicache_core.plugin.discovery import find_backend
from hicache_core.plugin.dynamic import dynamic_spec
from hicache_core.plugin.options import parse_options, redact, redact_url
from hicache_core.plugin.redaction import hider
from hicache_core.types import BackendSpec, Capabilities, OpenContext

_FORMS = 'give either {"backend": NAME, "options": {…}} or {"url": "NAME://…"}'


@dataclass(frozen=True, slots=True)
class BackendChoice:
    """A backend and its parsed options. source: how it was chosen, fit to be shown."""

    spec: BackendSpec
    options: Any = field(repr=False)
    source: str

    @property
    def capabilities(self) -> Capabilities:
        """What the backend declares under these options."""
        return self.spec.capabilities_for(self.options)

    def shown_options(self) -> dict[str, Any]:
        """The options with secrets hidden."""
        return redact(self.options)


def choose_backend(
    choice: str | Mapping[str, Any] | BackendChoice,
    options: Mapping[str, Any] | msgspec.Struct | None = None,
    *,
    strict: bool = True,
    allow_dynamic: Iterable[str] | None = None,
) -> BackendChoice:
    """The backend by name, URL or mapping.

    options: beside a name only. strict=False: option values may be text (command line); those of a URL always may.
    allow_dynamic: modules that `dynamic` may import (for doors open to others); None: any. Raises ConfigError and
    its kinds (UnknownNameError, OptionError) or PluginError.
    """
    if isinstance(choice, BackendChoice):
        if options:
            raise ConfigError("the backend was already chosen with its options; further options have no effect")
        return choice
    if isinstance(choice, Mapping):
        choice, options, strict = _from_mapping(choice, options, strict)
    if "://" in choice:
        if options:
            raise ConfigError(
                f"options are given beside the URL {redact_url(choice)}: put them into its query, or {_FORMS}"
            )
        return _from_url(choice, allow_dynamic)
    spec = _spec(choice, allow_dynamic)
    return BackendChoice(spec, _parsed(spec, options or {}, strict), f"backend {choice}")


def open_backend(choice: BackendChoice, ctx: OpenContext) -> object:
    """The opened backend object, its hooks checked. Whoever opens it closes it.

    Raises MissingDependencyError (with the install line), HookError, OpenError, or what the backend itself raises
    of hicache's errors; any other exception becomes an OpenError that keeps it as its cause.
    """
    spec = choice.spec
    missing_sdk(spec)
    factory = (
        spec.factory if callable(spec.factory) else resolve_dotted(spec.factory, f"factory of backend {spec.name}")
    )
    try:
        backend: object = factory(choice.options, ctx)
    except HiCacheError:
        raise
    except Exception as error:
        why = hider(choice.options)(told(error))
        raise OpenError(f"backend {spec.name!r} could not be opened: {why}") from error
    check_hooks(backend, dynamic=spec.name == "dynamic")
    return backend


def missing_sdk(spec: BackendSpec) -> None:
    """Raises MissingDependencyError, with the install line, for the first SDK module that is not there."""
    for need in spec.requires:
        if not module_exists(need.module):
            raise MissingDependencyError(f"backend {spec.name!r} needs the module {need.module!r}: {need.install}")


def module_exists(name: str) -> bool:
    """Whether a module could be imported, without importing it (only its parent packages)."""
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def resolve_dotted(path: str, what: str) -> Callable[..., Any]:
    """The callable behind `module:name`. Raises PluginError that says `what` it is for."""
    module, colon, attribute = path.partition(":")
    try:
        target: Any = importlib.import_module(module)
        for part in attribute.split(".") if colon else ():
            target = getattr(target, part)
    except (ImportError, AttributeError) as error:
        raise PluginError(f"{what} {path!r} cannot be found: {error}") from error
    if not callable(target):
        raise PluginError(f"{what} {path!r} is not callable (the form is module:function)")
    found: Callable[..., Any] = target
    return found


def _from_mapping(
    choice: Mapping[str, Any], options: Mapping[str, Any] | msgspec.Struct | None, strict: bool
) -> tuple[str, Mapping[str, Any] | msgspec.Struct | None, bool]:
    unknown = [key for key in choice if key not in ("backend", "options", "url")]
    if unknown:
        raise OptionError(f"unknown key {unknown[0]!r} in the choice of a backend: {_FORMS}")
    if ("backend" in choice) == ("url" in choice):
        raise ConfigError(f"{'both' if 'url' in choice else 'neither'} of backend and url given: {_FORMS}")
    inner = choice.get("options")
    if inner is not None and not isinstance(inner, Mapping | msgspec.Struct):
        raise OptionError(f"options must be a mapping, got {type(inner).__name__}")
    if inner and options:
        raise ConfigError("options are given twice, in the mapping and beside it")
    name = choice.get("backend", choice.get("url"))
    if not isinstance(name, str):
        raise OptionError(f"backend and url are text, got {name!r}: {_FORMS}")
    if ("url" in choice) != ("://" in name):
        raise ConfigError(f"{name!r} stands under {'url' if 'url' in choice else 'backend'}: {_FORMS}")
    return name, inner or options, strict


def _from_url(url: str, allow_dynamic: Iterable[str] | None) -> BackendChoice:
    shown = redact_url(url)
    try:
        parts = urlsplit(url)
        pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:  # its text repeats what may be a secret, and so would the cause
        raise OptionError(f"{shown} is no URL that can be read; write NAME://PLACE?name=value&name=value") from None
    if not parts.scheme:  # pasted JSON, for one: it may hold a secret, so it is not repeated
        raise OptionError(f"a URL of a backend begins with the backend's name, NAME://PLACE?name=value; {_FORMS}")
    spec = _spec(parts.scheme, allow_dynamic)
    options: dict[str, Any] = {}
    for name, value in pairs:
        if name in options:
            raise OptionError(f"{shown}: option {name!r} is given twice")
        options[name] = value
    if spec.options_from_url:
        options |= resolve_dotted(spec.options_from_url, f"options_from_url of backend {spec.name}")(url)
    elif parts.netloc or parts.path.strip("/"):
        raise OptionError(
            f"{shown}: backend {spec.name!r} reads options from the query only: {spec.name}://?name=value"
        )
    return BackendChoice(spec, _parsed(spec, options, strict=False), f"url {shown}")


def _spec(name: str, allow_dynamic: Iterable[str] | None) -> BackendSpec:
    spec = find_backend(name)
    return dynamic_spec(allow_dynamic) if name == "dynamic" and allow_dynamic is not None else spec


def _parsed(spec: BackendSpec, options: Mapping[str, Any] | msgspec.Struct, strict: bool) -> Any:
    if isinstance(options, msgspec.Struct):
        if not isinstance(options, spec.options):
            raise OptionError(f"backend {spec.name!r} takes {spec.options.__name__}, got {type(options).__name__}")
        return options
    return parse_options(spec.options, options, where=f"backend {spec.name!r}", strict=strict)
