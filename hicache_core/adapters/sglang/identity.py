"""What SGLang's pools and settings say of the bytes of a page."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hicache_core.adapters.door_options import DoorOptions
from hicache_core.adapters.sglang.config import WHERE
from hicache_core.errors import ConfigError, IdentityError
from hicache_core.namespace import Identity
from hicache_core.types import PoolName

_SHARDED = (PoolName.MAMBA,)
"""Pools whose pages differ from rank to rank also where the main pool's are the same on all ranks."""
_MODEL_SETTINGS = ("quantization", "json_model_override_args", "quantization_param_path", "revision")
"""Arguments of the engine that change what the weights compute."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among the others. replicated: all TP ranks hold the same pages of the main pool (MLA)."""

    tp_rank: int
    tp_size: int
    pp_rank: int
    pp_size: int
    cp_rank: int
    cp_size: int
    dcp_rank: int
    dcp_size: int
    replicated: bool
    writer: bool

    @classmethod
    def of(cls, config: Any) -> Ranks:
        """From any version's HiCacheStorageConfig; a field that a version lacks has its value for one rank."""

        def field(name: str, default: Any) -> Any:
            value = getattr(config, name, default)
            return default if value is None else value

        tp_rank, replicated = int(field("tp_rank", 0)), bool(field("is_mla_model", False))
        writer = bool(field("is_storage_writer", not replicated or tp_rank == 0))
        return cls(
            tp_rank,
            int(field("tp_size", 1)),
            int(field("pp_rank", 0)),
            int(field("pp_size", 1)),
            int(field("attn_cp_rank", 0)),
            int(field("attn_cp_size", 1)),
            int(field("dcp_rank", 0)),
            int(field("dcp_size", 1)),
            replicated,
            writer,
        )

    @property
    def share(self) -> str:
        """Which part of a page's tokens and layers this process holds, where that is not all; heads not counted."""
        axes = (
            ("pp", self.pp_rank, self.pp_size),
            ("cp", self.cp_rank, self.cp_size),
            ("dcp", self.dcp_rank, self.dcp_size),
        )
        return "".join(f" {name}{rank}/{size}" for name, rank, size in axes if size > 1)

    @property
    def rank(self) -> int:
        """Its number among all."""
        return (self.pp_rank * self.cp_size + self.cp_rank) * self.tp_size + self.tp_rank

    @property
    def world_size(self) -> int:
        """How many there are."""
        return self.pp_size * self.cp_size * self.tp_size


def weights_identity(options: DoorOptions, served: Mapping[str, Any], model_name: str) -> str:
    """Which weights compute the pages: as configured, else sampled from the model's files.

    served: SGLang's own arguments. Raises IdentityError that says what to add where there are no files to look at.
    """
    tried = [str(path) for path in (served.get("model_path"), model_name) if path]
    local = next((path for path in tried if os.path.isdir(path)), None)
    return options.weights_of(local or next(iter(tried), ""), WHERE)


def model_identity(options: DoorOptions, served: Mapping[str, Any], model_name: str) -> str:
    """The model's id, with the engine's arguments that change what its weights compute."""
    name = options.model or model_name or os.path.basename(str(served.get("model_path") or "").rstrip("/"))
    if not name:
        raise ConfigError(f'{WHERE}: SGLang gives the model no name; add "model": "NAME"')
    changed = [f"{key}={served[key]}" for key in _MODEL_SETTINGS if served.get(key) not in (None, "", "{}")]
    return " ".join([name, *changed])


def main_identity(pool: Any, form: str, model: str, weights_id: str, ranks: Ranks, tenant: str) -> Identity:
    """The identity of the main pool's pages. form: byte form of a page, see `byte_form`.

    Heads and layers are counted over all ranks. Raises ConfigError for a pool whose numbers cannot be.
    """
    layer_num = int(getattr(pool, "layer_num", 0) or 0)
    first = int(getattr(pool, "start_layer", 0) or 0)
    heads, ranges = _heads(pool, ranks)
    head_dim = int(getattr(pool, "head_dim", 0) or getattr(pool, "kv_cache_dim", 0) or 1)
    try:
        return Identity(
            model=model,
            weights=weights_id,
            dtype=str(getattr(pool, "dtype", "uint8")).removeprefix("torch."),
            page_size=int(pool.page_size),
            kind="mla" if ranks.replicated else "mha",
            layer_num=first + max(1, layer_num),
            head_num=heads,
            head_dim=head_dim,
            v_head_dim=int(getattr(pool, "v_head_dim", 0) or 0) or None,
            layout=f"sglang {form}{ranks.share}",
            layers=(first, first + max(1, layer_num)),
            heads=ranges,
            tenant=tenant,
        )
    except IdentityError as error:
        raise ConfigError(f"host pool {type(pool).__name__}: {error}") from error


def byte_form(pool: Any, sizes: list[int], order: str) -> str:
    """How the bytes of a page are put together: what must be equal for two pools to read each other's pages.

    sizes: of its regions. order: `flat` where they follow the pool's flat page, else how they were come by.
    """
    tag = getattr(pool, "storage_format_tag", None)
    kind = f"{type(pool).__name__} {getattr(pool, 'layout', 'unknown')} {order}" + (f" {tag}" if tag else "")
    return f"{kind} {len(sizes)}x{sum(sizes)} {_digest(repr(sizes).encode())[:8].hex()}"


def side_salt(name: PoolName, pool: Any, form: str, ranks: Ranks) -> bytes:
    """What is mixed into the hashes of a pool beside the main one: its byte form, and its rank where ranks differ.

    A pool may be attached at any time, so its form cannot be part of the session's namespace.
    """
    numbers = [getattr(pool, key, None) for key in ("page_size", "layer_num", "start_layer", "head_num", "dtype")]
    text = f"{form} {numbers}{ranks.share}"
    if ranks.replicated and (name in _SHARDED or _has_heads(pool)):
        text += f" tp{ranks.tp_rank}/{ranks.tp_size}"
    return _digest(f"hicache-sglang-pool-1 {name} {text}".encode())


def rank_sharded(name: PoolName, pool: Any, ranks: Ranks) -> bool:
    """Whether each rank has pages of its own in this pool, so that each must write them."""
    return not ranks.replicated or name in _SHARDED or _has_heads(pool)


def _has_heads(pool: Any) -> bool:
    return not hasattr(pool, "kv_cache_dim") and bool(getattr(pool, "head_num", 0))


def _heads(pool: Any, ranks: Ranks) -> tuple[int, tuple[int, int]]:
    local = max(1, int(getattr(pool, "head_num", 1) or 1))
    if ranks.replicated:
        return local, (0, local)
    return local * ranks.tp_size, (local * ranks.tp_rank, local * (ranks.tp_rank + 1))


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()
