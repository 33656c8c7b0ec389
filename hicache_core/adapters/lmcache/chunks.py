"""What a chunk of the remote connector is: its identity, its page hash, its length.

Every page has the length of a full chunk and a header that says how much of it is used, so that a chunk with fewer
tokens (`save_unfull_chunk`) needs no second question. LMCache's `save_chunk_meta` changes nothing here: shapes and
dtypes are the session's identity, so a chunk of others is never found.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Any

import msgspec

from hicache_core.adapters.lmcache.options import ConnectorOptions
from hicache_core.errors import ConfigError
from hicache_core.namespace import Identity

LAYOUT_VERSION = 1
_LENGTH = struct.Struct("<Q")
HEADER_BYTES = _LENGTH.size


def header(nbytes: int) -> bytes:
    """The header of a chunk of so many bytes."""
    return _LENGTH.pack(nbytes)


def length_in(told: bytes | bytearray) -> int:
    """What `header` was made of."""
    return int(_LENGTH.unpack(told)[0])


def page_hash(key: Any) -> str:
    """64 hex digits over all that LMCache calls two keys different by."""
    told = (key.model_name, key.world_size, key.worker_id, key.chunk_hash_hex, str(key.dtype), key.tags)
    layer = getattr(key, "layer_id", None)
    encoded = msgspec.json.encode((*told, layer), enc_hook=str)
    return hashlib.sha256(b"lmcache chunk key " + encoded).hexdigest()


def refuse_what_cannot_work(config: Any, metadata: Any, where: str) -> None:
    """Raises ConfigError for settings of LMCache under which chunks are no pages of one size."""
    if metadata is None:
        raise ConfigError(
            f"{where}: LMCache gives no metadata here, so nothing says what a chunk is; name the class "
            f"HiCacheConnectorAdapter in the place of HiCacheConnector"
        )
    if config.use_layerwise:
        raise ConfigError(f"{where}: use_layerwise makes an object of every layer; set it to false")
    if config.remote_serde not in (None, "naive"):
        raise ConfigError(
            f"{where}: remote_serde {config.remote_serde!r} makes objects of any length; set it to naive, and name a "
            f'transform that compresses among "transforms" of this configuration'
        )


def identity_of(metadata: Any, options: ConnectorOptions, release: str, hashes: str, where: str) -> Identity:
    """hashes: LMCache's algorithm of chunk hashes. Raises IdentityError where nothing says which weights."""
    shapes = [[int(n) for n in shape] for shape in metadata.get_shapes()]
    dtypes = [str(dtype) for dtype in metadata.get_dtypes()]
    told = (LAYOUT_VERSION, release, shapes, dtypes, metadata.chunk_size, bool(metadata.use_mla), hashes)
    digest = hashlib.sha256(msgspec.json.encode(told)).hexdigest()[:32]
    layers, _, _, heads, width = metadata.kv_shape
    return Identity(
        model=options.model or metadata.model_name,
        weights=options.weights_of(metadata.model_name, where),
        dtype=dtypes[0].removeprefix("torch."),
        page_size=metadata.chunk_size
        & -metadata.chunk_size,  # wants a power of two; the true number is in the layout
        kind="mla" if metadata.use_mla else "mha",
        layer_num=max(1, int(layers)),
        head_num=1 if metadata.use_mla else max(1, int(heads)),
        head_dim=max(1, int(width)),
        layout=f"lmcache-remote-{release}-{digest}",
        tenant=options.tenant,
    )
