"""Page hashes and physical keys.

A page hash is `SHA-256(previous digest || payload)`, where the payload is the page's token ids as little-endian
uint32; the first page's previous digest is the chain seed, or nothing. A page with an id above 2**32 - 1 (these
come from multimodal inputs) has the payload 0xFF || little-endian uint64 ids. With `bigram` a page of n positions
holds the 2n words t0 t1, t1 t2, … of n + 1 tokens. All of it equals SGLang's page hash (mem_cache/utils.py), so
that a store can be shared with it.
"""

from __future__ import annotations

import hashlib
import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Tokens: TypeAlias = "npt.NDArray[np.unsignedinteger] | npt.NDArray[np.signedinteger] | array[int] | Sequence[int]"
"""Token ids: integers in 0 … 2**64 - 1. A uint32 array is the fast form."""

DIGEST_BYTES = 32
_NARROW = (1 << 32) - 1
_WIDE_TAG = b"\xff"
_SEED_DOMAIN = b"sglang-cache-namespace-v1"
_NAMESPACE = re.compile(r"[0-9a-f]{32}")
_POOL = re.compile(r"[0-9a-z_]{1,40}")
_KEY = re.compile(r"([0-9a-f]{32})/([0-9a-f]{64})\.([0-9a-z_]{1,40})\.l(\d+)-(\d+)h(\d+)-(\d+)")


def page_hashes(tokens: Tokens, page_size: int, *, prior: bytes | None = None, bigram: bool = False) -> list[str]:
    """The chained hash of every page, 64 lower-case hex digits each; a trailing partial page is hashed too.

    prior: raw digest (32 bytes) of the page before, or a `chain_seed`. Raises ValueError for a negative or
    non-integer id, and for a page size below 1.
    """
    return [digest.hex() for digest in page_digests(tokens, page_size, prior=prior, bigram=bigram)]


def page_digests(tokens: Tokens, page_size: int, *, prior: bytes | None = None, bigram: bool = False) -> list[bytes]:
    """`page_hashes` as raw digests of 32 bytes."""
    if page_size < 1:
        raise ValueError(f"page_size must be at least 1, got {page_size}")
    if prior is not None and len(prior) != DIGEST_BYTES:
        raise ValueError(f"prior is a raw SHA-256 digest of {DIGEST_BYTES} bytes, got {len(prior)} bytes")
    ids = token_array(tokens)
    per_page = page_size
    if bigram:
        ids = np.repeat(ids, 2)[1:-1]  # t0 t1 t1 t2 t2 t3 …: each page shares its boundary token with the next
        per_page = 2 * page_size
    if ids.dtype.itemsize <= 4 or not ids.size or int(ids.max()) <= _NARROW:
        narrow = np.ascontiguousarray(ids, dtype="<u4")
        return _chain(narrow.data.cast("B"), 4 * per_page, prior or b"") if narrow.size else []
    return _chain_with_wide(ids, per_page, prior or b"")


def token_array(tokens: Tokens) -> npt.NDArray[np.unsignedinteger]:
    """Token ids as a one-dimensional unsigned array; uint32 input is not copied.

    Raises ValueError for negative ids and for anything that is not an integer.
    """
    ids = np.asarray(tokens)
    if ids.ndim != 1:
        raise ValueError(f"tokens must be one-dimensional, got shape {ids.shape}")
    if not ids.size:
        return np.empty(0, np.uint32)
    if ids.dtype.kind == "u":
        return ids
    if ids.dtype.kind != "i":
        return _from_large(tokens, ids.dtype)
    if int(ids.min()) < 0:
        where = int(np.argmax(ids < 0))
        raise ValueError(f"token ids must not be negative, got {int(ids[where])} at position {where}")
    return ids.astype(np.uint64 if ids.dtype.itemsize == 8 else np.uint32)


def _from_large(tokens: Tokens, dtype: np.dtype[Any]) -> npt.NDArray[np.unsignedinteger]:
    """Ids from 2**63 on beside small ones: numpy would make floats or objects of them."""
    if all(type(token) is int for token in tokens):
        try:
            return np.array(tokens, np.uint64)
        except OverflowError:
            raise ValueError("token ids must be in 0 … 2**64 - 1") from None
    raise ValueError(f"token ids must be integers, got an array of {dtype}")


def _chain(payload: memoryview, step: int, digest: bytes) -> list[bytes]:
    """One SHA-256 a page; joining digest and payload costs less than a second call into hashlib."""
    sha256 = hashlib.sha256
    digests = []
    for start in range(0, len(payload), step):
        digest = sha256(digest + payload[start : start + step]).digest()
        digests.append(digest)
    return digests


def _chain_with_wide(ids: npt.NDArray[np.unsignedinteger], per_page: int, digest: bytes) -> list[bytes]:
    digests = []
    for start in range(0, ids.size, per_page):
        page = ids[start : start + per_page]
        wide = int(page.max()) > _NARROW
        payload = _WIDE_TAG + page.astype("<u8").tobytes() if wide else page.astype("<u4").tobytes()
        digest = hashlib.sha256(digest + payload).digest()
        digests.append(digest)
    return digests


def chain_seed(extra_key: str | None, cache_salt: str | None) -> bytes | None:
    """What a request's own identity (LoRA in `extra_key`, tenant's salt) puts before its first page.

    32 bytes for `prior`, or None where neither is given. An empty salt is no salt, as in SGLang's RadixKey.
    """
    cache_salt = cache_salt or None
    if extra_key is None and cache_salt is None:
        return None
    seed = hashlib.sha256(_SEED_DOMAIN)
    for part in (extra_key, cache_salt):
        if part is None:
            seed.update(b"\x00")
        else:
            data = part.encode()
            seed.update(b"\x01" + len(data).to_bytes(8, "little") + data)
    return seed.digest()


@dataclass(frozen=True, slots=True)
class KeySchema:
    """Makes physical keys `{namespace}/{page hash}.{pool}.l{a}-{b}h{c}-{d}`.

    namespace: 32 lower-case hex digits. layers, heads: half-open ranges in global coordinates that an object
    holds. Raises ValueError for anything else.
    """

    namespace: str
    layers: tuple[int, int]
    heads: tuple[int, int]

    def __post_init__(self) -> None:
        if not _NAMESPACE.fullmatch(self.namespace):
            raise ValueError(f"a namespace is 32 lower-case hex digits, got {self.namespace!r}")
        for what, (start, end) in (("layers", self.layers), ("heads", self.heads)):
            if not 0 <= start < end:
                raise ValueError(f"{what} must be a range start < end, from 0 on; got {start}-{end}")

    def physical(self, page_hashes: Sequence[str], pool: str = "kv") -> list[str]:
        """One key per page hash. `pool` is a PoolName or its value."""
        head, tail = f"{self.namespace}/", self.suffix(pool)
        return [head + page_hash + tail for page_hash in page_hashes]

    def suffix(self, pool: str = "kv") -> str:
        """What follows the page hash: `.{pool}.l{a}-{b}h{c}-{d}`."""
        name = str(pool)
        if not _POOL.fullmatch(name):
            raise ValueError(f"a pool's name is [0-9a-z_], at most 40 characters; got {name!r}")
        return f".{name}.l{self.layers[0]}-{self.layers[1]}h{self.heads[0]}-{self.heads[1]}"


@dataclass(frozen=True, slots=True)
class ParsedKey:
    """The parts of a physical key."""

    namespace: str
    page_hash: str
    pool: str
    layers: tuple[int, int]
    heads: tuple[int, int]


def parse_key(key: str) -> ParsedKey | None:
    """The parts of a key that a KeySchema made; None for any other string (a store may hold foreign keys)."""
    found = _KEY.fullmatch(key)
    if found is None:
        return None
    namespace, page_hash, pool, a, b, c, d = found.groups()
    return ParsedKey(namespace, page_hash, pool, (int(a), int(b)), (int(c), int(d)))
