"""The command line's options, and how they become `EngineOptions`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, get_args

import msgspec
import typer

from hicache_core.config.model import HiCacheConfig, LayoutName, PrefetchPolicy, WritePolicy
from hicache_core.errors import OptionError, UnknownNameError

from .settings import PAGE_SIZE, EngineOptions

Model = Annotated[
    str, typer.Option("--model", help="smollm2, random, or the path of a Llama GGUF", show_default=True)
]
Dtype = Annotated[str, typer.Option("--dtype", help="float32, bfloat16, float16")]
Device = Annotated[str, typer.Option("--device", help="a torch device: cpu, cuda, cuda:1")]
Seed = Annotated[int, typer.Option("--seed", help="weights of --model random")]
Threads = Annotated[int | None, typer.Option("--threads", help="torch's threads; torch's own choice without it")]
PageSize = Annotated[int, typer.Option("--page-size", help="tokens per page, a power of two")]
Chunk = Annotated[int, typer.Option("--chunk", help="tokens of one prefill pass")]
MaxRunning = Annotated[int, typer.Option("--max-running", help="sequences at once")]
DeviceTokens = Annotated[int, typer.Option("--device-tokens", help="tokens that the device pool (L1) holds")]
HostRatio = Annotated[float, typer.Option("--hicache-ratio", help="host pool (L2) pages / device pool pages")]
HostSize = Annotated[float, typer.Option("--hicache-size", help="host pool in GB (10^9 bytes); overrides the ratio")]
Backend = Annotated[
    str | None,
    typer.Option("--backend", "--hicache-storage-backend", help="an L3 plugin's name, or a URL; none: no L3"),
]
BackendOptions = Annotated[
    list[str] | None, typer.Option("-o", "--option", metavar="NAME=VALUE", help="an option of the backend; repeat it")
]
Write = Annotated[str, typer.Option("--hicache-write-policy", help=", ".join(get_args(WritePolicy)))]
Prefetch = Annotated[str, typer.Option("--hicache-storage-prefetch-policy", help=", ".join(get_args(PrefetchPolicy)))]
PrefetchThreshold = Annotated[int, typer.Option("--prefetch-threshold", help="tokens below which L3 is not asked")]
Layout = Annotated[str, typer.Option("--hicache-mem-layout", help=", ".join(get_args(LayoutName)))]
Eviction = Annotated[str, typer.Option("--eviction-policy", help="lru, lfu, fifo, mru, filo, slru, priority")]
Tenant = Annotated[str, typer.Option("--tenant", help="keeps stored pages apart from other tenants'")]


def engine_options(
    *,
    model: str = "smollm2",
    dtype: str = "float32",
    device: str = "cpu",
    seed: int = 0,
    threads: int | None = None,
    page_size: int = PAGE_SIZE,
    chunk: int = 256,
    max_running: int = 8,
    device_tokens: int = 8192,
    hicache_ratio: float = 2.0,
    hicache_size: float = 0.0,
    backend: str | None = None,
    option: Iterable[str] | None = None,
    write_policy: str = "write_through",
    prefetch_policy: str = "timeout",
    prefetch_threshold: int = 256,
    layout: str = "page_first",
    eviction: str = "lru",
    tenant: str = "",
) -> EngineOptions:
    """Options of an engine from what a command was given. Raises ConfigError naming what cannot be."""
    _known("write policy", write_policy, get_args(WritePolicy))
    _known("prefetch policy", prefetch_policy, get_args(PrefetchPolicy))
    _known("layout", layout, get_args(LayoutName))
    given: dict[str, Any] = {
        "enable_hierarchical_cache": True,
        "page_size": page_size,
        "hicache_ratio": hicache_ratio,
        "hicache_size": hicache_size,
        "hicache_storage_backend": backend,
        "hicache_storage_backend_options": backend_options(option),
        "hicache_write_policy": write_policy,
        "hicache_storage_prefetch_policy": prefetch_policy,
        "prefetch_threshold": prefetch_threshold,
        "hicache_mem_layout": layout,
        "eviction_policy": eviction,
        "enable_cache_report": True,
    }
    try:
        cache = msgspec.convert(given, HiCacheConfig)
        return EngineOptions(
            model=model,
            dtype=dtype,
            device=device,
            seed=seed,
            threads=threads,
            chunk=chunk,
            max_running=max_running,
            device_tokens=device_tokens,
            tenant=tenant,
            cache=cache,
        )
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


def _known(kind: str, name: str, names: Iterable[str]) -> None:
    if name not in names:
        raise UnknownNameError(kind, name, names)
