"""What a user writes for the SGLang door, and what of it SGLang keeps for itself.

--hicache-storage-backend dynamic --hicache-storage-backend-extra-config '{
  "backend_name": "hicache", "module_path": "hicache_core.adapters.sglang", "class_name": "HiCacheDynamicStorage",
  "interface_v1": 1, "hicache": {"backend": "file", "options": {"root": "/kv"}}}'
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from hicache_core.adapters.door_options import DoorOptions, parse_door_options
from hicache_core.errors import ConfigError, OptionError, nearest
from hicache_core.storage.settings import MOST_WORKERS, SessionSettings

OWN_KEY = "hicache"
WHERE = f'key "{OWN_KEY}" of --hicache-storage-backend-extra-config'
EXAMPLE = '"hicache": {"backend": "file", "options": {"root": "/var/cache/kv"}} or "hicache": {"url": "file:///…"}'
ENGINE_KEYS = (
    "backend_name",
    "module_path",
    "class_name",
    "interface_v1",
    "allocator",
    "prefetch_threshold",
    "prefetch_timeout_base",
    "prefetch_timeout_per_ki_token",
    "prefetch_timeout_max",
    "hicache_storage_pass_prefix_keys",
    "tp_lcm_size",
)
"""Keys beside ours that are SGLang's; most are gone before a backend sees them, but not on every path."""


class SglangDoorOptions(DoorOptions, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """The mapping under `hicache`: the keys of every door, and those of this one."""

    read_workers: Annotated[int, Meta(description="I/O threads for exists and get", ge=1, le=MOST_WORKERS)] = 2
    write_workers: Annotated[int, Meta(description="I/O threads for set", ge=1, le=MOST_WORKERS)] = 2
    seal: Annotated[bool, Meta(description="seal pages, and verify them when read")] = True

    def session_settings(self) -> SessionSettings:
        """Settings of the session. ConfigError for a bad key file."""
        return msgspec.structs.replace(self.settings(WHERE), seal=self.seal)


class DoorConfig(msgspec.Struct, frozen=True):
    """The parsed extra config. zero_copy: SGLang was told to use the v1 methods."""

    options: SglangDoorOptions
    zero_copy: bool


def parse_config(extra: Mapping[str, Any] | None) -> DoorConfig:
    """The extra config of the `dynamic` backend. Raises ConfigError, OptionError: what to write instead."""
    extra = extra or {}
    if OWN_KEY not in extra:
        near = nearest(OWN_KEY, [key for key in extra if key not in ENGINE_KEYS])
        hint = f" ({near!r} is there; did you mean {OWN_KEY!r}?)" if near else ""
        raise ConfigError(f"--hicache-storage-backend-extra-config has no key {OWN_KEY!r}{hint}; write {EXAMPLE}")
    for key in extra:
        if key != OWN_KEY and key not in ENGINE_KEYS:
            raise OptionError(_unknown(key))
    mapping = extra[OWN_KEY]
    if not isinstance(mapping, Mapping):
        raise OptionError(f"{WHERE} must be a mapping, got {type(mapping).__name__}; write {EXAMPLE}")
    options = parse_door_options(SglangDoorOptions, mapping, WHERE)
    return DoorConfig(options, _interface_v1(extra.get("interface_v1", 0)))


def _interface_v1(value: Any) -> bool:
    """SGLang takes any true value, so that "0" would turn it on."""
    if value not in (0, 1):
        raise OptionError(f'"interface_v1" is {value!r}; write 1 (pages straight from and into the pool) or 0')
    return bool(value)


def _unknown(key: str) -> str:
    own = msgspec.structs.fields(SglangDoorOptions)
    if key in (field.name for field in own):
        return f"{key!r} stands beside {OWN_KEY!r} in the extra config; put it inside: {EXAMPLE}"
    known = (OWN_KEY, *ENGINE_KEYS)
    near = nearest(key, known)
    hint = f"; did you mean {near!r}?" if near else f". Known: {', '.join(known)}."
    return f"--hicache-storage-backend-extra-config: unknown key {key!r}{hint}"
