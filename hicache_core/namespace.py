"""The identity of a page's bytes: everything fixed while a session is open on which they depend.

Two configurations whose bytes are not interchangeable never share a namespace, so a mismatch of any kind is a
miss. What varies by request (LoRA, extra_key, cache_salt) seeds the hash chain instead; what part of the model an
object holds (pool, layers, heads) stands in the physical key. TP and PP sizes are in neither.
"""

from __future__ import annotations

import dataclasses
import hashlib
import struct
from dataclasses import dataclass
from typing import Any, Literal

from hicache_core.errors import IdentityError
from hicache_core.keys import KeySchema

NAMESPACE_VERSION = 1
_DOMAIN = b"hicache-namespace"
_IN_KEY = ("layers", "heads")
"""Fields that stand in the physical key, not in the namespace."""
WEIGHTS_FORMS = ("declared:", "sampled:", "full:")

WHOLE = (0, 0)
"""As a range: all layers, or all heads."""


@dataclass(frozen=True, slots=True)
class TransformIdentity:
    """A page transform as the namespace knows it. parameters: canonical text; key_id: never the key itself."""

    name: str
    version: str
    parameters: str = ""
    key_id: str = ""


@dataclass(frozen=True, slots=True)
class Identity:
    """What the bytes of a page depend on. Raises IdentityError where something is not named.

    model: its id. weights: `declared:NAME`, `sampled:HEX` or `full:HEX` (see hicache_core.weights). dtype:
    logical dtype of the cache (`bfloat16`). page_size: tokens. kind, layer_num, head_num, head_dim, v_head_dim:
    global geometry of the model's cache (MLA: head_num 1, head_dim the latent's width; v_head_dim None: as
    head_dim). layout: byte order of a stored page. layers, heads: half-open ranges that the objects of this
    session hold, in global coordinates. tenant: of the deployment, not of a request. seal_algorithm 0 with
    stride 0: pages are stored without a seal. seal_key_id: names the MAC key of algorithm 2.
    """

    model: str
    weights: str
    dtype: str
    page_size: int
    kind: Literal["mha", "mla"]
    layer_num: int
    head_num: int
    head_dim: int
    v_head_dim: int | None = None
    layout: str = "page_first"
    layers: tuple[int, int] = WHOLE
    heads: tuple[int, int] = WHOLE
    schema: int = 1
    tenant: str = ""
    seal_version: int = 1
    seal_algorithm: int = 1
    seal_stride: int = 64
    seal_key_id: str = ""
    transforms: tuple[TransformIdentity, ...] = ()

    def __post_init__(self) -> None:
        _require_names(self)
        _require_numbers(self)
        for name, total in (("layers", self.layer_num), ("heads", self.head_num)):
            start, end = getattr(self, name)
            if (start, end) == WHOLE:
                object.__setattr__(self, name, (0, total))
            elif not 0 <= start < end <= total:
                raise IdentityError(f"{name} {start}-{end} is no range within 0-{total}")
        if self.v_head_dim is None:
            object.__setattr__(self, "v_head_dim", self.head_dim)

    def namespace(self) -> str:
        """32 lower-case hex digits: the first 16 bytes of SHA-256 over `encoded()`."""
        return hashlib.sha256(self.encoded()).hexdigest()[:32]

    def encoded(self) -> bytes:
        """The canonical bytes behind the namespace: versioned, every name and value typed and length-prefixed."""
        fields = [(f.name, getattr(self, f.name)) for f in dataclasses.fields(self) if f.name not in _IN_KEY]
        return _DOMAIN + struct.pack("<I", NAMESPACE_VERSION) + _encode(tuple(fields))

    def key_schema(self) -> KeySchema:
        """The maker of this session's physical keys."""
        return KeySchema(self.namespace(), self.layers, self.heads)

    def replace(self, **changes: Any) -> Identity:
        """A copy with some fields changed; whole ranges and an equal v_head_dim follow the new geometry."""
        if self.layers == (0, self.layer_num):
            changes.setdefault("layers", WHOLE)
        if self.heads == (0, self.head_num):
            changes.setdefault("heads", WHOLE)
        if self.v_head_dim == self.head_dim:
            changes.setdefault("v_head_dim", None)
        return dataclasses.replace(self, **changes)


def diff(a: Identity, b: Identity) -> list[str]:
    """Names of the fields in which two identities differ: why the pages of one are a miss for the other."""
    return [f.name for f in dataclasses.fields(a) if getattr(a, f.name) != getattr(b, f.name)]


def _require_names(identity: Identity) -> None:
    for name in ("model", "dtype", "layout"):
        if not getattr(identity, name):
            raise IdentityError(f"{name} is not named: pages of different {name}s would share their keys")
    form = next((f for f in WEIGHTS_FORMS if identity.weights.startswith(f)), None)
    if form is None or len(identity.weights) == len(form):
        raise IdentityError(
            f"weights {identity.weights!r} does not say which weights these are: pages of other weights would be "
            f"taken for these. Give declared:NAME, or take sampled:… from hicache_core.weights.sampled(path)"
        )
    if identity.kind not in ("mha", "mla"):
        raise IdentityError(f"kind must be mha or mla, got {identity.kind!r}")


def _require_numbers(identity: Identity) -> None:
    for name in ("page_size", "layer_num", "head_num", "head_dim", "schema"):
        if getattr(identity, name) < 1:
            raise IdentityError(f"{name} must be at least 1, got {getattr(identity, name)}")
    if identity.page_size & (identity.page_size - 1):
        raise IdentityError(f"page_size must be a power of two, got {identity.page_size}")
    sealed = identity.seal_algorithm != 0
    if identity.seal_stride < 64 if sealed else identity.seal_stride != 0:
        raise IdentityError(
            f"seal_stride {identity.seal_stride} does not fit seal_algorithm {identity.seal_algorithm}: a seal "
            f"takes at least 64 bytes, no seal (algorithm 0) takes none"
        )


def _encode(value: Any) -> bytes:
    """Type tag, u64 length, bytes; sequences hold their items encoded, so no two values read the same."""
    if value is None:
        tag, data = b"n", b""
    elif isinstance(value, bool):
        tag, data = b"b", bytes([value])
    elif isinstance(value, int):
        tag, data = b"i", str(value).encode()
    elif isinstance(value, str):
        tag, data = b"s", value.encode("utf-8", "surrogatepass")
    elif isinstance(value, tuple):
        tag, data = b"t", b"".join(_encode(item) for item in value)
    elif isinstance(value, TransformIdentity):
        tag, data = b"x", _encode(dataclasses.astuple(value))
    else:
        raise IdentityError(f"{value!r} of type {type(value).__name__} cannot be part of an identity")
    return tag + struct.pack("<Q", len(data)) + data
