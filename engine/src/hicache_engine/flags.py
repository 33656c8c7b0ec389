"""The command line's options, and how they become `EngineOptions`.

The hierarchy's settings come from defaults, a file (--config, HICACHE_CONFIG), HICACHE_* variables and flags, as
everywhere in hicache; a flag that is not given leaves them alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, get_args

import msgspec
import typer

from hicache_core.config.load import resolve
from hicache_core.config.model import IoBackend, LayoutName, PrefetchPolicy, WritePolicy
from hicache_core.errors import OptionError

from .settings import PAGE_SIZE, EngineOptions

_HIERARCHY, _ENGINE = "KV-cache hierarchy", "Model and engine"


def _engine(*names: str, help: str, **more: Any) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=_ENGINE, **more)


def _cache(*names: str, help: str, **more: Any) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=_HIERARCHY, **more)


Model = Annotated[str, _engine("--model", help="smollm2, random, or the path of a Llama GGUF")]
Dtype = Annotated[str, _engine("--dtype", help="float32, bfloat16 or float16, of weights and KV")]
Device = Annotated[str, _engine("--device", help="a torch device: cpu, cuda, cuda:1")]
Seed = Annotated[int, _engine("--seed", help="weights of --model random")]
Threads = Annotated[int | None, _engine("--threads", help="torch's threads; torch's own choice without it")]
Chunk = Annotated[int, _engine("--chunk", help="tokens of one prefill pass")]
MaxRunning = Annotated[int, _engine("--max-running", help="sequences at once")]
DeviceTokens = Annotated[int, _engine("--device-tokens", help="tokens that the device pool (L1) holds")]
Tenant = Annotated[str, _engine("--tenant", help="keeps stored pages apart from other tenants'")]
Config = Annotated[Path | None, _cache("--config", help="settings of the hierarchy: JSON, TOML or YAML")]
PageSize = Annotated[int | None, _cache("--page-size", help=f"tokens per page, a power of two (default {PAGE_SIZE})")]
HostRatio = Annotated[float | None, _cache("--hicache-ratio", help="host pool (L2) pages / device pool pages")]
HostSize = Annotated[float | None, _cache("--hicache-size", help="host pool in GB (10^9 bytes) instead of a ratio")]
Backend = Annotated[
    str | None, _cache("--backend", "--hicache-storage-backend", help="an L3 plugin's name, or a URL; none: no L3")
]
BackendOptions = Annotated[
    list[str] | None, _cache("-o", "--option", metavar="NAME=VALUE", help="an option of the backend; repeat it")
]
ExtraConfig = Annotated[
    str | None, _cache("--hicache-storage-backend-extra-config", help="the same as JSON, TOML or YAML, or @FILE")
]
Write = Annotated[str | None, _cache("--hicache-write-policy", help=", ".join(get_args(WritePolicy)))]
Prefetch = Annotated[
    str | None, _cache("--hicache-storage-prefetch-policy", help=", ".join(get_args(PrefetchPolicy)))
]
PrefetchThreshold = Annotated[int | None, _cache("--prefetch-threshold", help="tokens below which L3 is not asked")]
Layout = Annotated[str | None, _cache("--hicache-mem-layout", help=", ".join(get_args(LayoutName)))]
Io = Annotated[str | None, _cache("--hicache-io-backend", help=", ".join(get_args(IoBackend)))]
Eviction = Annotated[str | None, _cache("--eviction-policy", help="lru, lfu, fifo, mru, filo, slru, priority")]


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
    own_options = backend_options(option)
    resolved = resolve(flags, backend_options=own_options, file=config)
    if resolved.sources["page_size"].kind in ("default", "compat"):
        resolved = resolve(flags | {"page_size": PAGE_SIZE}, backend_options=own_options, file=config)
    try:
        return msgspec.convert({"cache": resolved.config, **own}, EngineOptions, from_attributes=True)
    except msgspec.ValidationError as error:
        raise OptionError(str(error)) from error


def backend_options(given: Iterable[str] | None) -> dict[str, str]:
    """`NAME=VALUE` texts as a mapping. Raises OptionError for one without "="."""
    options = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise OptionError(f"-o {text!r} is not NAME=VALUE")
        options[name] = value
    return options
