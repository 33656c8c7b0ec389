"""Find a class of SGLang, tell it what SGLang would tell it, and construct it the way SGLang's factory does."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from hicache_core.adapters.sglang_backend.options import SglangOptions
from hicache_core.errors import MissingDependencyError, OpenError, PluginError, nearest

STORAGE_MODULE = "sglang.srt.mem_cache.hicache_storage"
_environment = threading.Lock()


def storage_module() -> Any:
    """SGLang's `hicache_storage`. MissingDependencyError where SGLang does not import, with the cause."""
    try:
        return importlib.import_module(STORAGE_MODULE)
    except ImportError as error:
        raise MissingDependencyError(
            f"SGLang's storage interface does not import here: {error}. Install sglang, or use tools/peers/sglang.sh"
            " and its env.sh, which need no GPU"
        ) from error


def find_class(options: SglangOptions) -> type:
    """The class. PluginError where the module does not import, the class is not there, or is of another kind."""
    base = storage_module().HiCacheStorage
    try:
        module = importlib.import_module(options.module)
    except Exception as error:
        raise PluginError(f"sglang_class: module {options.module!r} does not import: {error}") from error
    found = getattr(module, options.class_name, None)
    if not inspect.isclass(found):
        near = nearest(options.class_name, [name for name, value in vars(module).items() if inspect.isclass(value)])
        hint = f"; did you mean {near!r}?" if near else ""
        raise PluginError(f"sglang_class: module {options.module!r} has no class {options.class_name!r}{hint}")
    if not issubclass(found, base):
        raise PluginError(f"sglang_class: {options.sglang_class} is no HiCacheStorage")
    return found


def has_v1(cls: type) -> bool:
    """Whether the class has v1 methods of its own; the base class's do nothing."""
    base = storage_module().HiCacheStorage
    return all(getattr(cls, name) is not getattr(base, name, None) for name in ("batch_get_v1", "batch_set_v1"))


def storage_config(options: SglangOptions, model_name: str) -> Any:
    """SGLang's HiCacheStorageConfig of this version, which may have fewer fields than another."""
    config_class = storage_module().HiCacheStorageConfig
    fields = {field.name for field in dataclasses.fields(config_class)}
    values: Mapping[str, Any] = {
        "tp_rank": options.tp_rank,
        "tp_size": options.tp_size,
        "pp_rank": options.pp_rank,
        "pp_size": options.pp_size,
        "attn_cp_rank": 0,
        "attn_cp_size": 1,
        "is_mla_model": options.is_mla_model,
        "enable_storage_metrics": False,
        "is_page_first_layout": options.layout == "page_first",
        "model_name": model_name,
        "extra_config": dict(options.extra_config),
    }
    return config_class(**{name: value for name, value in values.items() if name in fields})


def construct(cls: type, options: SglangOptions, config: Any, pool: Callable[[], Any]) -> Any:
    """One object of the class. pool: makes its host pool, called only where the constructor asks for one.

    The forms are those of SGLang's factory: from_env_config(bytes per page, dtype, config), (config), (config, pool),
    and for classes loaded by name (config, {}). OpenError keeps whatever the class raised.
    """
    try:
        with _environ(options.environment):
            from_env: Callable[..., Any] | None = getattr(cls, "from_env_config", None)
            if from_env is not None:
                made = pool()
                return from_env(_bytes_per_page(made), made.dtype, config)
            return cls(config, *_second_argument(cls, pool))
    except Exception as error:
        raise OpenError(f"{options.sglang_class} could not be constructed: {error}") from error


def _second_argument(cls: type, pool: Callable[[], Any]) -> tuple[Any, ...]:
    constructor: Callable[..., Any] = cls
    parameters = [
        p
        for p in inspect.signature(constructor).parameters.values()
        if p.kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    ]
    if len(parameters) < 2:
        return ()
    if "pool" in parameters[1].name:
        return (pool(),)
    return () if parameters[1].default is not inspect.Parameter.empty else ({},)


def _bytes_per_page(pool: Any) -> int:
    per_token = pool.get_size_per_token() if pool.layout == "layer_first" else pool.get_ksize_per_token()
    return int(per_token * pool.page_size)


@contextmanager
def _environ(variables: Mapping[str, str]) -> Iterator[None]:
    """Variables for the time of a construction; some of SGLang's classes are configured by nothing else."""
    with _environment:
        before = {name: os.environ.get(name) for name in variables}
        os.environ.update(variables)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
