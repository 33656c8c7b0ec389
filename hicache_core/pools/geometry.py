"""What one token's KV looks like on this rank: the numbers that every byte address follows from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hicache_core.errors import ConfigError, UnknownNameError

Kind = Literal["mha", "mla"]

DTYPE_BYTES: dict[str, int] = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int8": 1,
    "uint8": 1,
}
"""Logical dtypes of a KV cache and the bytes of one element (torch's names)."""


@dataclass(frozen=True, slots=True)
class KVGeometry:
    """Shape of the KV cache held by one rank. Sizes are in elements unless the name says bytes.

    MHA and GQA: K is [head_num, head_dim] per token and layer, V is [head_num, v_head_dim]; `v_head_dim` is None
    where it equals head_dim (else the pool is an asymmetric one). MLA: one vector of `head_dim` = latent + rope
    per token and layer; `rope_dim` is the length of its tail, needed by layout page_first_kv_split and by
    `v(layer)` of a device pool. `layer_start` and `head_start` place the rank in the global model.
    Raises ConfigError on sizes that cannot be and on a page size that is not a power of two.
    """

    kind: Kind
    layer_num: int
    head_num: int
    head_dim: int
    v_head_dim: int | None = None
    dtype: str = "float16"
    page_size: int = 64
    layer_start: int = 0
    head_start: int = 0
    rope_dim: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in ("mha", "mla"):
            raise UnknownNameError("kind of attention", self.kind, ("mha", "mla"))
        if self.dtype not in DTYPE_BYTES:
            raise UnknownNameError("KV dtype", self.dtype, DTYPE_BYTES)
        for field in ("layer_num", "head_num", "head_dim", "page_size"):
            if getattr(self, field) < 1:
                raise ConfigError(f"{field} is {getattr(self, field)}; it must be at least 1")
        if self.page_size & (self.page_size - 1):
            raise ConfigError(f"page_size is {self.page_size}; it must be a power of two")
        if self.layer_start < 0 or self.head_start < 0:
            raise ConfigError("layer_start and head_start count from 0 in the global model")
        self._check_kind()

    def _check_kind(self) -> None:
        if self.kind == "mha":
            if self.rope_dim is not None:
                raise ConfigError("rope_dim belongs to kind 'mla'; MHA pools have none")
            if self.v_head_dim is not None and self.v_head_dim < 1:
                raise ConfigError(f"v_head_dim is {self.v_head_dim}; it must be at least 1")
            return
        if self.head_num != 1:
            raise ConfigError(f"MLA keeps one latent vector per token: head_num must be 1, not {self.head_num}")
        if self.v_head_dim is not None:
            raise ConfigError("MLA has no separate V: leave v_head_dim out and name rope_dim")
        if self.rope_dim is not None and not 0 < self.rope_dim < self.head_dim:
            raise ConfigError(f"rope_dim is {self.rope_dim}; it must lie between 0 and head_dim {self.head_dim}")

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return DTYPE_BYTES[self.dtype]

    @property
    def value_dim(self) -> int:
        """Elements of V per head and token: v_head_dim, or head_dim where that is None."""
        return self.head_dim if self.v_head_dim is None else self.v_head_dim

    @property
    def asymmetric(self) -> bool:
        """Whether K and V rows differ in length."""
        return self.kind == "mha" and self.value_dim != self.head_dim

    @property
    def row_bytes(self) -> tuple[int, ...]:
        """Bytes of one head's row of one token, per device array: (K, V) for MHA, (latent + rope,) for MLA."""
        if self.kind == "mla":
            return (self.head_dim * self.itemsize,)
        return (self.head_dim * self.itemsize, self.value_dim * self.itemsize)

    @property
    def token_nbytes(self) -> int:
        """Bytes of one token over all layers, K and V."""
        return self.layer_num * self.head_num * sum(self.row_bytes)

    @property
    def page_nbytes(self) -> int:
        """Bytes of one page over all layers, K and V: the payload of one stored object."""
        return self.page_size * self.token_nbytes
