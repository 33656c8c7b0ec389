"""What a user writes for the SGLang door, and what of it SGLang keeps for itself.

--hicache-storage-backend dynamic --hicache-storage-backend-extra-config '{
  "backend_name": "hicache", "module_path": "hicache_core.adapters.sglang", "class_name": "HiCacheDynamicStorage",
  "interface_v1": 1, "hicache": {"backend": "file", "options": {"root": "/kv"}}}'
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from hicache_core.errors import ConfigError, OptionError, nearest
from hicache_core.plugin.options import parse_options
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


class DoorOptions(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """The mapping under `hicache`."""

    backend: Annotated[str, Meta(description="name of a backend; see hicache backends list")] = ""
    options: Annotated[dict[str, Any], Meta(description="its options; see hicache backends show NAME")] = {}
    url: Annotated[str, Meta(description="backend and options as one URL, instead of the two")] = ""
    model: Annotated[str, Meta(description="id of the model; default: the name under which SGLang serves it")] = ""
    weights: Annotated[
        str, Meta(description="declared:NAME, sampled:HEX or full:HEX; default: sampled from the model's files")
    ] = ""
    model_path: Annotated[
        str, Meta(description="folder with the model's files; default: the one that SGLang was given")
    ] = ""
    tenant: Annotated[str, Meta(description="tenant of the deployment; part of every key's namespace")] = ""
    timeout: Annotated[float, Meta(description="seconds, deadline of one operation", gt=0)] = 10.0
    read_workers: Annotated[int, Meta(description="I/O threads for exists and get", ge=1, le=MOST_WORKERS)] = 2
    write_workers: Annotated[int, Meta(description="I/O threads for set", ge=1, le=MOST_WORKERS)] = 2
    stage_bytes: Annotated[int, Meta(description="memory per I/O thread for pages that cannot go straight", ge=0)] = (
        8 << 20
    )
    seal: Annotated[bool, Meta(description="seal pages, and verify them when read")] = True
    mac_key_file: Annotated[
        str, Meta(description="file with the key (16 bytes or more) for seals that no one can forge")
    ] = ""
    heal: Annotated[bool, Meta(description="replace damaged pages when they are written again")] = True
    transforms: Annotated[list[str | dict[str, Any]], Meta(description="page transforms, in order")] = []
    observers: Annotated[list[str | dict[str, Any]], Meta(description="observers of the store's calls")] = []

    def choice(self) -> dict[str, Any]:
        """What `open_session` takes. Raises ConfigError unless exactly one of backend and url is given."""
        if bool(self.backend) == bool(self.url):
            which = "both backend and url are" if self.url else "neither backend nor url is"
            raise ConfigError(f"{WHERE}: {which} given; write {EXAMPLE}")
        return {"url": self.url} if self.url else {"backend": self.backend, "options": self.options}

    def settings(self) -> SessionSettings:
        """Settings of the session. Pools belong to SGLang, so they are lent. ConfigError for a bad key file."""
        return SessionSettings(
            timeout=self.timeout,
            read_workers=self.read_workers,
            write_workers=self.write_workers,
            stage_bytes=self.stage_bytes,
            seal=self.seal,
            mac_key=_mac_key(self.mac_key_file),
            tenant=self.tenant,
            heal=self.heal,
            lent_pools=True,
        )


class DoorConfig(msgspec.Struct, frozen=True):
    """The parsed extra config. zero_copy: SGLang was told to use the v1 methods."""

    options: DoorOptions
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
    options = parse_options(DoorOptions, mapping, where=WHERE)
    options.choice()
    return DoorConfig(options, _interface_v1(extra.get("interface_v1", 0)))


def _interface_v1(value: Any) -> bool:
    """SGLang takes any true value, so that "0" would turn it on."""
    if value not in (0, 1):
        raise OptionError(f'"interface_v1" is {value!r}; write 1 (pages straight from and into the pool) or 0')
    return bool(value)


def _unknown(key: str) -> str:
    own = msgspec.structs.fields(DoorOptions)
    if key in (field.name for field in own):
        return f"{key!r} stands beside {OWN_KEY!r} in the extra config; put it inside: {EXAMPLE}"
    known = (OWN_KEY, *ENGINE_KEYS)
    near = nearest(key, known)
    hint = f"; did you mean {near!r}?" if near else f". Known: {', '.join(known)}."
    return f"--hicache-storage-backend-extra-config: unknown key {key!r}{hint}"


def _mac_key(path: str) -> bytes:
    if not path:
        return b""
    try:
        key = Path(path).read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"{WHERE}: mac_key_file {path} cannot be read: {error}") from error
    if not 16 <= len(key) <= 64:
        raise ConfigError(f"{WHERE}: mac_key_file {path} holds {len(key)} bytes; a key has 16 to 64")
    return key
