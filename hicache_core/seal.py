"""Stamping and checking seals on the data path; the form and the rules of judgement are in `seal_format`."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TypeAlias

from hicache_core.errors import ConfigError
from hicache_core.seal_format import (
    MAC,
    MAGIC,
    PREFIX,
    SEAL_BYTES,
    SEAL_VERSION,
    XXH3,
    SealFields,
    SealReport,
    describe,
    inspect,
    mac_key_id,
    mac_tag,
    tag_of_regions,
    verify,
    xxh,
)
from hicache_core.types import Buffer, Outcome, Page

__all__ = [
    "MAC",
    "SEAL_BYTES",
    "SEAL_VERSION",
    "XXH3",
    "Prepared",
    "SealFields",
    "SealReport",
    "Sealer",
    "describe",
    "inspect",
    "mac_key_id",
]

_WHOLE = struct.Struct("<48sQQ")
_pack_into, _unpack_from = _WHOLE.pack_into, _WHOLE.unpack_from
_JOIN_BELOW = 512
"""Bytes of a region."""

PreparedKey: TypeAlias = "tuple[bytes, int]"
"""Bytes 0–47 of the seal of one key and the seed made from them. Reusable while key and page shape last."""
Prepared: TypeAlias = "Sequence[PreparedKey]"
"""One for each key of a batch."""


class Sealer:
    """Stamps and checks the seals of one namespace. Thread-safe: it keeps no state between calls.

    namespace_hex: 32 hex digits. stride: bytes reserved for a seal, at least 64. mac_key: 16–64 bytes, for
    algorithm 2 only. Raises ConfigError for what cannot work.
    """

    def __init__(
        self, namespace_hex: str, stride: int = SEAL_BYTES, algorithm: int = XXH3, mac_key: bytes | None = None
    ) -> None:
        if stride < SEAL_BYTES:
            raise ConfigError(f"a seal takes {SEAL_BYTES} bytes, the stride is {stride}")
        if len(namespace_hex) != 32:
            raise ConfigError(f"a namespace is 32 hex digits, got {namespace_hex!r}")
        _check_key(algorithm, mac_key)
        self.namespace, self.stride, self.algorithm = namespace_hex, stride, algorithm
        self._namespace_bytes = bytes.fromhex(namespace_hex)
        self._mac_key = mac_key
        self._padding = bytes(stride - SEAL_BYTES)

    def prepare(self, keys: Sequence[str], nbytes: int, regions: int) -> list[PreparedKey]:
        """What stamping and checking need of each key, for pages of `nbytes` payload bytes in `regions` buffers."""
        head = PREFIX.pack(MAGIC, SEAL_VERSION, self.algorithm, 0, regions, nbytes, self._namespace_bytes, 0)[:40]
        prefixes = [head + xxh(key.encode()).to_bytes(8, "little") for key in keys]
        return [(prefix, xxh(prefix)) for prefix in prefixes]

    def prefix(self, key: str, nbytes: int, regions: int) -> bytes:
        """Bytes 0–47 of the seal of one key."""
        return self.prepare([key], nbytes, regions)[0][0]

    def stamp(self, key: str, payload_buffers: Sequence[Buffer], out: Buffer) -> None:
        """Write the seal of one page into `out` (writable, `stride` bytes)."""
        self.stamp_batch([key], [[out, *payload_buffers]])

    def stamp_batch(self, keys: Sequence[str], pages: Sequence[Page], prepared: Prepared | None = None) -> None:
        """Write the seal of every page into its first buffer; the others are its payload, in region order."""
        for one, page in zip(prepared or self.prepare_each(keys, pages), pages, strict=True):
            self.stamp_page(one, page)

    def stamp_page(self, prepared: PreparedKey, page: Page) -> None:
        """Write the seal of one page into its first buffer."""
        prefix, seed = prepared
        low, high = 0, 0
        if self.algorithm == MAC:
            low, high = struct.unpack("<QQ", mac_tag(self._mac_key or b"", prefix, page[1:]))
        else:
            low = xxh(page[1], seed) if len(page) == 2 else _tag_of_several(seed, page)
        _pack_into(page[0], 0, prefix, low, high)
        if self._padding:
            page[0][SEAL_BYTES : self.stride] = self._padding

    def check(self, key: str, seal: Buffer, payload_buffers: Sequence[Buffer], nbytes: int | None = None) -> Outcome:
        """HIT, CORRUPT or FOREIGN. nbytes: payload bytes that were stored; other than the buffers hold: CORRUPT."""
        if nbytes is not None and nbytes != sum(map(len, payload_buffers)):
            return Outcome.CORRUPT
        return self.check_batch([key], [[seal, *payload_buffers]])[0]

    def check_batch(
        self, keys: Sequence[str], pages: Sequence[Page], prepared: Prepared | None = None
    ) -> list[Outcome]:
        """`check` for every page: its first buffer is the seal (`stride` bytes), the others are its payload."""
        each = prepared or self.prepare_each(keys, pages)
        return [self.check_page(one, page) for one, page in zip(each, pages, strict=True)]

    def check_page(self, prepared: PreparedKey, page: Page) -> Outcome:
        """HIT, CORRUPT or FOREIGN: the verdict on one page, whose first buffer is its seal."""
        prefix, seed = prepared
        if self.algorithm == XXH3:
            stored, low, high = _unpack_from(page[0])
            tag = xxh(page[1], seed) if len(page) == 2 else _tag_of_several(seed, page)
            sound = stored == prefix and low == tag and not high
            if sound and (not self._padding or page[0][SEAL_BYTES:].tobytes() == self._padding):
                return Outcome.HIT
        return self._judge(prefix, page)

    def prepare_each(self, keys: Sequence[str], pages: Sequence[Page]) -> list[PreparedKey]:
        """As `prepare`, in one go where all pages have one shape."""
        sizes = [len(page[1]) if len(page) == 2 else _size_of_several(page) for page in pages]
        counts = list(map(len, pages))
        if len(set(sizes)) == len(set(counts)) == 1:
            return self.prepare(keys, sizes[0], counts[0] - 1)
        shapes = zip(keys, sizes, counts, strict=True)
        return [self.prepare([key], size, count - 1)[0] for key, size, count in shapes]

    def _judge(self, ours: bytes, page: Page) -> Outcome:
        """The verdict on a page whose seal is not, byte for byte, the one that was expected."""
        seal = page[0]
        stored = seal[:SEAL_BYTES].tobytes()
        if verify(stored, page[1:], self._mac_key) or seal[SEAL_BYTES:].tobytes() != self._padding:
            return Outcome.CORRUPT
        same = stored[:12] == ours[:12] and stored[16:48] == ours[16:48]  # 12–15, regions as written, may differ
        return Outcome.HIT if same else Outcome.FOREIGN


def _size_of_several(page: Page) -> int:
    if len(page) == 3:
        return len(page[1]) + len(page[2])
    return sum(map(len, page)) - len(page[0])


def _tag_of_several(seed: int, page: Page) -> int:
    """Many small regions are joined: cheaper than a call for each, and the copy is gone at once."""
    if len(page) > 3 and len(page[1]) <= _JOIN_BELOW:
        return xxh(b"".join(page[1:]), seed)
    return tag_of_regions(seed, page, 1)


def _check_key(algorithm: int, mac_key: bytes | None) -> None:
    if algorithm not in (XXH3, MAC):
        raise ConfigError(f"unknown seal algorithm {algorithm}; known: 1 (xxh3-64), 2 (keyed MAC)")
    if algorithm == MAC and (mac_key is None or not 16 <= len(mac_key) <= 64):
        raise ConfigError("seal algorithm 2 needs a MAC key of 16 to 64 bytes")
    if algorithm == XXH3 and mac_key is not None:
        raise ConfigError("a MAC key has no effect with seal algorithm 1; choose algorithm 2 or leave the key out")
