"""The flags that commands share, and how they become `EngineOptions`.

The hierarchy's settings come from defaults, a file (--config, HICACHE_CONFIG), HICACHE_* variables and flags, as
everywhere in hicache; a flag that is not given leaves them alone.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import msgspec
import typer

from hicache_core.config.load import resolve
from hicache_core.config.model import IoBackend, LayoutName, PrefetchPolicy, WritePolicy
from hicache_core.errors import OptionError
from hicache_core.plugin.options import split_assignments
from hicache_core.tree.eviction import policy_names

from .settings import PAGE_SIZE, EngineOptions

ENGINE_FLAGS: dict[str, Any] = {
    "model": Annotated[str, typer.Option("--model", help="smollm2, random, or the path of a Llama GGUF")],
    "dtype": Annotated[str, typer.Option("--dtype", help="float32, bfloat16 or float16, of weights and KV")],
    "device": Annotated[str, typer.Option("--device", help="a torch device: cpu, cuda, cuda:1")],
    "seed": Annotated[int, typer.Option("--seed", help="weights of --model random")],
    "threads": Annotated[
        int | None, typer.Option("--threads", help="torch's threads; torch's own choice without it")
    ],
    "chunk": Annotated[int, typer.Option("--chunk", help="tokens of one prefill pass")],
    "max_running": Annotated[int, typer.Option("--max-running", help="sequences at once")],
    "device_tokens": Annotated[int, typer.Option("--device-tokens", help="tokens that the device pool (L1) holds")],
    "tenant": Annotated[str, typer.Option("--tenant", help="keeps stored pages apart from other tenants'")],
}
"""Flags of EngineOptions' own fields, whose defaults are theirs."""

CACHE_FLAGS: dict[str, Any] = {
    "page_size": Annotated[
        int | None, typer.Option("--page-size", help=f"tokens per page, a power of two (default {PAGE_SIZE})")
    ],
    "hicache_ratio": Annotated[
        float | None, typer.Option("--hicache-ratio", help="host pool (L2) pages / device pool pages")
    ],
    "hicache_size": Annotated[
        float | None, typer.Option("--hicache-size", help="host pool in GB (10^9 bytes) instead of a ratio")
    ],
    "hicache_storage_backend": Annotated[
        str | None,
        typer.Option("--backend", "--hicache-storage-backend", help="an L3 plugin's name, or a URL; none: no L3"),
    ],
    "hicache_storage_backend_extra_config": Annotated[
        str | None,
        typer.Option("--hicache-storage-backend-extra-config", help="the same as JSON, TOML or YAML, or @FILE"),
    ],
    "hicache_write_policy": Annotated[
        str | None, typer.Option("--hicache-write-policy", help=", ".join(get_args(WritePolicy)))
    ],
    "hicache_storage_prefetch_policy": Annotated[
        str | None, typer.Option("--hicache-storage-prefetch-policy", help=", ".join(get_args(PrefetchPolicy)))
    ],
    "prefetch_threshold": Annotated[
        int | None, typer.Option("--prefetch-threshold", help="tokens below which L3 is not asked")
    ],
    "hicache_mem_layout": Annotated[
        str | None, typer.Option("--hicache-mem-layout", help=", ".join(get_args(LayoutName)))
    ],
    "hicache_io_backend": Annotated[
        str | None, typer.Option("--hicache-io-backend", help=", ".join(get_args(IoBackend)))
    ],
    "eviction_policy": Annotated[str | None, typer.Option("--eviction-policy", help=", ".join(policy_names()))],
    "enable_cache_report": Annotated[
        bool | None,
        typer.Option(
            "--enable-cache-report/--no-cache-report", help="cached tokens by tier in each usage (default: yes)"
        ),
    ],
}
"""Flags of the hierarchy's settings; one that is not given leaves the setting to file and environment."""

OTHER_DEFAULTS: dict[str, Any] = {"page_size": PAGE_SIZE, "enable_cache_report": True}
"""Where the engine's defaults are not the hierarchy's own."""

SOURCE_FLAGS: dict[str, Any] = {
    "config": Annotated[Path | None, typer.Option("--config", help="settings of the hierarchy: JSON, TOML or YAML")],
    "option": Annotated[
        list[str] | None,
        typer.Option("-o", "--option", metavar="NAME=VALUE", help="an option of the backend; repeat it"),
    ],
}
"""Where else settings, and the backend's options, may come from."""


def takes_engine_options(
    *, only: Collection[str] = (), without: Collection[str] = (), **fixed: Any
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command these flags; it gets what was given as its first argument, an `EngineOptions`.

    only: names of the flags, all by default; without: names left out. fixed: settings of the hierarchy that hold
    where no flag is given.
    """

    def chosen(flags: Mapping[str, Any]) -> dict[str, Any]:
        return {name: kind for name, kind in flags.items() if (not only or name in only) and name not in without}

    engine, cache, sources = chosen(ENGINE_FLAGS), chosen(CACHE_FLAGS), chosen(SOURCE_FLAGS)
    defaults = {field.name: field.default for field in msgspec.structs.fields(EngineOptions)}

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def command(**given: Any) -> None:
            settings = {name: given.pop(name) for name in cache}
            settings = fixed | {name: value for name, value in settings.items() if value is not None}
            own = {name: given.pop(name) for name in engine}
            rest = {name: given.pop(name) for name in sources}
            function(engine_options(settings, **rest, **own), **given)

        shared = [_parameter(name, kind, defaults.get(name)) for name, kind in (engine | cache | sources).items()]
        hints = get_type_hints(function, include_extras=True)
        _, *others = inspect.signature(function).parameters.values()
        own_ones = [_parameter(other.name, hints[other.name], other.default) for other in others]
        parameters = [*own_ones, *shared]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return command

    return decorate


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def engine_options(
    given: Mapping[str, Any] | None = None,
    *,
    option: Iterable[str] | None = None,
    config: Path | None = None,
    **own: Any,
) -> EngineOptions:
    """An engine's options from what a command was given.

    given: settings of the hierarchy by name, None for those that were not given. option: `NAME=VALUE` of the backend.
    own: EngineOptions' other fields. Raises ConfigError naming what cannot be and where it was given.
    """
    flags = {"enable_hierarchical_cache": True} | dict(given or {})
    own_options = split_assignments(option or ())
    resolved = resolve(flags, backend_options=own_options, file=config)
    open_ones = {n: v for n, v in OTHER_DEFAULTS.items() if resolved.sources[n].kind in ("default", "compat")}
    if open_ones:
        resolved = resolve(flags | open_ones, backend_options=own_options, file=config)
    try:
        return msgspec.convert({"cache": resolved.config, **own}, EngineOptions, from_attributes=True)
    except msgspec.ValidationError as error:
        raise OptionError(str(error)) from error
