"""Tokens as the tree sees them: bytes of little-endian uint32, whole pages only."""

from __future__ import annotations

from array import array

import msgspec
import numpy as np
import numpy.typing as npt

from hicache_core.keys import Tokens, token_array
from hicache_core.tree.node import NamespaceKey

TOKEN_BYTES = 4
MAX_TOKEN = 2**32 - 1

_INT64 = np.dtype("<i8")
_UINT32 = np.dtype("<u4")
_or = np.bitwise_or.reduce


class TreeKey(msgspec.Struct, frozen=True):
    """A sequence ready for the tree."""

    data: bytes
    """uint32[n · page_size], little-endian."""
    namespace: NamespaceKey = (None, None)

    def __len__(self) -> int:
        """Tokens."""
        return len(self.data) // TOKEN_BYTES


def namespace_key(extra_key: str | None, cache_salt: str | None) -> NamespaceKey:
    """Which root a sequence belongs to. An empty salt is no salt."""
    return extra_key, cache_salt or None


def token_bytes(tokens: Tokens, page_size: int) -> bytes:
    """The whole pages of `tokens` as little-endian uint32; what is left over is cut off.

    tokens: an integer array of one dimension, an array.array or a list of ints; array('q') and int64 arrays are
    the fast forms. Raises ValueError for ids that are not integers, negative, or wide (above 2**32 - 1: a store may
    hold such pages, the tree does not).
    """
    count = len(tokens) // page_size * page_size
    if not count:
        return b""
    ids: npt.NDArray[np.int64] | None = None
    if isinstance(tokens, array):
        if tokens.typecode == "q":
            ids = np.frombuffer(tokens, _INT64, count)
    elif isinstance(tokens, np.ndarray) and tokens.dtype == _INT64 and tokens.ndim == 1:
        ids = tokens[:count].view(np.int64)
    # One pass finds both faults: the sign bit and the upper half survive an OR.
    if ids is not None and not int(_or(ids)) >> 32:
        return ids.astype(_UINT32).tobytes()
    checked = token_array(tokens)[:count]
    if checked.dtype.itemsize > TOKEN_BYTES and int(checked.max()) > MAX_TOKEN:
        at = int(np.argmax(checked > MAX_TOKEN))
        raise ValueError(
            f"token {int(checked[at])} at position {at} is a wide id (above 2**32 - 1); the tree holds uint32 only"
        )
    return checked.astype(_UINT32, copy=False).tobytes()
