"""Settings that cannot work, or would have no effect, are refused before anything is taken."""

from __future__ import annotations

import math
from collections.abc import Collection

from hicache_core.config.model import HiCacheConfig
from hicache_core.errors import ConfigError, OptionError, UnknownNameError
from hicache_core.tree.eviction import policy_names

_LARGEST_SIZE_GB = 1e6

_ONLY_WITH_HIERARCHY = (
    "hicache_ratio",
    "hicache_size",
    "hicache_write_policy",
    "hicache_io_backend",
    "hicache_mem_layout",
    "hicache_storage_backend",
    "hicache_storage_prefetch_policy",
    "hicache_storage_backend_options",
    "hicache_storage_transforms",
    "hicache_storage_observers",
    "disaggregation_decode_enable_offload_kvcache",
)
"""Settings that do nothing while the hierarchy is off."""


def validate(config: HiCacheConfig, given: Collection[str] = ()) -> None:
    """Refuse a configuration that cannot work.

    given: names of the settings that someone set; one of them that would have no effect is refused too. Raises
    OptionError or ConfigError that names the setting.
    """
    _check_finite(config)
    _check_page_size(config.page_size)
    _check_policy(config.eviction_policy)
    if config.hicache_size > _LARGEST_SIZE_GB:
        raise OptionError(f"hicache_size is in GB (10^9 bytes), {config.hicache_size:g} looks like bytes")
    _check_exclusions(config)
    _check_effect(config, given)
    _check_built(config)


def _check_finite(config: HiCacheConfig) -> None:
    """A file may say `inf` or `nan`: no size, share or time can be that."""
    for name in HiCacheConfig.__struct_fields__:
        value = getattr(config, name)
        if isinstance(value, float) and not math.isfinite(value):
            raise OptionError(f"{name} is {value}; it must be a finite number")


def _check_page_size(page_size: int) -> None:
    if page_size < 1 or page_size & (page_size - 1):
        below = 1 << max(page_size.bit_length() - 1, 0)
        near = f"the nearest are {below} and {2 * below}" if page_size > 1 else "the smallest is 1"
        raise OptionError(f"page_size {page_size} is not a power of two; {near}")


def _check_policy(name: str) -> None:
    known = policy_names()
    if name not in known:
        raise UnknownNameError("eviction policy", name, known)


def _check_exclusions(config: HiCacheConfig) -> None:
    if config.enable_hierarchical_cache and config.disable_radix_cache:
        raise ConfigError(
            "enable_hierarchical_cache and disable_radix_cache exclude each other: the hierarchy extends the prefix "
            "cache that is disabled"
        )
    decode = config.disaggregation_mode == "decode"
    for name in ("disaggregation_decode_enable_offload_kvcache", "disaggregation_decode_enable_radix_cache"):
        if getattr(config, name) and not decode:
            raise ConfigError(f"{name} works only with disaggregation_mode decode, not {config.disaggregation_mode}")
    if config.disaggregation_decode_enable_offload_kvcache and config.hicache_storage_backend is None:
        raise ConfigError(
            "disaggregation_decode_enable_offload_kvcache needs a hicache_storage_backend to offload to"
        )


def _check_effect(config: HiCacheConfig, given: Collection[str]) -> None:
    if not config.enable_hierarchical_cache:
        idle = [name for name in _ONLY_WITH_HIERARCHY if name in given and getattr(config, name)]
        if idle:
            raise OptionError(
                f"{idle[0]} has no effect: enable_hierarchical_cache is off. Set it (--enable-hierarchical-cache, or "
                f"HICACHE_ENABLE_HIERARCHICAL_CACHE=true), or leave {idle[0]} out"
            )
    if config.hicache_storage_backend_options and config.hicache_storage_backend is None:
        names = ", ".join(config.hicache_storage_backend_options)
        raise OptionError(f"backend options are given ({names}), but no hicache_storage_backend that takes them")


def _check_built(config: HiCacheConfig) -> None:
    """Flags that exist so that their place is known; what they would turn on does not exist yet."""
    missing = []
    if config.disaggregation_mode != "off":
        missing.append(f"disaggregation_mode {config.disaggregation_mode}")
    if config.hicache_io_backend == "kernel_ascend":
        missing.append("hicache_io_backend kernel_ascend")
    if config.tp_lcm_size is not None:
        missing.append("tp_lcm_size")
    if missing:
        raise ConfigError(f"{missing[0]} is not built yet; leave it out")
