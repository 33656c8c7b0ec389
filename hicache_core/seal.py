"""The seal: 64 bytes before every stored page that prove which page it is and that no byte has changed.

Little-endian: 0 magic · 8 u16 version · 10 u8 algorithm · 11 u8 zero · 12 u32 regions as written (informational) ·
16 u64 payload bytes · 24 16-byte namespace · 40 u64 xxh3-64 of the physical key · 48 16-byte tag. Where the stride
is larger (alignment), zeros follow. Algorithm 1: the tag is xxh3-64 of the payload in region order, seeded with
xxh3-64 of bytes 0–47, then 8 zero bytes. Algorithm 2: BLAKE2b of bytes 0–47 and the payload, keyed, 16 bytes.

Judgement: the tag comes first. Magic, tag, length or padding wrong: CORRUPT (damage, or a tag that cannot be
verified). Tag right, but version, algorithm, namespace or key are not ours: FOREIGN, which is never deleted.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Sequence
from typing import TypeAlias

import msgspec
import xxhash

from hicache_core.errors import ConfigError
from hicache_core.types import Buffer, Outcome, Page

SEAL_BYTES = 64
SEAL_VERSION = 1
XXH3, MAC = 1, 2
"""Algorithms: xxh3-64 finds damage; the keyed MAC also finds forgery."""

MAGIC = b"HICSEAL\0"
_PREFIX = struct.Struct("<8sHBBIQ16sQ")
_FAST = struct.Struct("<48sQQ")
_PREFIX_BYTES = 48
_JOIN_BELOW = 512
_MAC_PERSON = b"hicache-seal"

Prepared: TypeAlias = "Sequence[tuple[bytes, int]]"
"""For each key: bytes 0–47 of its seal and the seed made from them. Reusable while key and page shape last."""

_xxh = xxhash.xxh3_64_intdigest


class SealFields(msgspec.Struct, frozen=True):
    """A seal, unpacked. namespace: 32 hex digits; tag: 32 hex digits."""

    version: int
    algorithm: int
    reserved: int
    regions: int
    payload_bytes: int
    namespace: str
    key_hash: int
    tag: str


class SealReport(msgspec.Struct, frozen=True):
    """What an offline reader finds in a stored object. outcome: HIT, CORRUPT or FOREIGN; reason: empty on HIT."""

    outcome: Outcome
    reason: str
    fields: SealFields | None


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

    def prepare(self, keys: Sequence[str], nbytes: int, regions: int) -> list[tuple[bytes, int]]:
        """What stamping and checking need of each key, for pages of `nbytes` payload bytes in `regions` buffers."""
        head = _PREFIX.pack(MAGIC, SEAL_VERSION, self.algorithm, 0, regions, nbytes, self._namespace_bytes, 0)[:40]
        xxh = _xxh
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
        if prepared is None:
            prepared = self._prepared(keys, pages)
        pack_into, padding = _FAST.pack_into, self._padding
        for (prefix, seed), page in zip(prepared, pages, strict=True):
            seal = page[0]
            low, high = self._tag(prefix, seed, page)
            pack_into(seal, 0, prefix, low, high)
            if padding:
                seal[SEAL_BYTES : self.stride] = padding

    def check(self, key: str, seal: Buffer, payload_buffers: Sequence[Buffer], nbytes: int | None = None) -> Outcome:
        """HIT, CORRUPT or FOREIGN. nbytes: payload bytes that were stored; other than the buffers hold: CORRUPT."""
        if nbytes is not None and nbytes != sum(map(len, payload_buffers)):
            return Outcome.CORRUPT
        return self.check_batch([key], [[seal, *payload_buffers]])[0]

    def check_batch(
        self, keys: Sequence[str], pages: Sequence[Page], prepared: Prepared | None = None
    ) -> list[Outcome]:
        """`check` for every page: its first buffer is the seal (`stride` bytes), the others are its payload."""
        if prepared is None:
            prepared = self._prepared(keys, pages)
        if self.algorithm != XXH3:
            return [self._judge(p, page) for p, page in zip(prepared, pages, strict=True)]
        unpack, xxh, hit, padding = _FAST.unpack_from, _xxh, Outcome.HIT, self._padding
        outcomes = []
        for (prefix, seed), page in zip(prepared, pages, strict=True):
            stored, low, high = unpack(page[0])
            tag = xxh(page[1], seed) if len(page) == 2 else _tag_of_regions(seed, page)
            sound = stored == prefix and low == tag and not high
            if sound and (not padding or page[0][SEAL_BYTES:].tobytes() == padding):
                outcomes.append(hit)
            else:
                outcomes.append(self._judge((prefix, seed), page))
        return outcomes

    def _prepared(self, keys: Sequence[str], pages: Sequence[Page]) -> list[tuple[bytes, int]]:
        """As `prepare`, in one go where all pages have one shape."""
        shapes = {(sum(map(len, page)) - len(page[0]), len(page) - 1) for page in pages}
        if len(shapes) == 1:
            return self.prepare(keys, *shapes.pop())
        return [
            self.prepare([key], sum(map(len, page)) - len(page[0]), len(page) - 1)[0]
            for key, page in zip(keys, pages, strict=True)
        ]

    def _tag(self, prefix: bytes, seed: int, page: Page) -> tuple[int, int]:
        if self.algorithm == MAC:
            low, high = struct.unpack("<QQ", _mac(self._mac_key or b"", prefix, page[1:]))
            return low, high
        return (_xxh(page[1], seed) if len(page) == 2 else _tag_of_regions(seed, page)), 0

    def _judge(self, prepared: tuple[bytes, int], page: Page) -> Outcome:
        seal = page[0]
        stored = seal[:SEAL_BYTES].tobytes()
        if _verify(stored, page[1:], self._mac_key) or seal[SEAL_BYTES:].tobytes() != self._padding:
            return Outcome.CORRUPT
        ours = prepared[0]
        same = stored[:12] == ours[:12] and stored[16:48] == ours[16:48]  # 12–15, regions as written, may differ
        return Outcome.HIT if same else Outcome.FOREIGN


def describe(seal: bytes | Buffer) -> SealFields | None:
    """The fields of a seal, for tools; None where the magic is missing or fewer than 64 bytes are there."""
    raw = bytes(seal[:SEAL_BYTES])
    if len(raw) < SEAL_BYTES or raw[:8] != MAGIC:
        return None
    _, version, algorithm, reserved, regions, nbytes, namespace, key_hash = _PREFIX.unpack(raw[:_PREFIX_BYTES])
    tag = raw[_PREFIX_BYTES:].hex()
    return SealFields(version, algorithm, reserved, regions, nbytes, namespace.hex(), key_hash, tag)


def inspect(key: str, data: bytes | Buffer, *, mac_key: bytes | None = None) -> SealReport:
    """Judge a whole stored object (seal, padding, payload) by its physical key alone, without a session.

    The stride is what the object holds beyond the payload length in the seal. An object sealed with algorithm 2
    can only be judged with its `mac_key`; without it the report says so and the outcome is CORRUPT.
    """
    view = memoryview(data).cast("B")
    fields = describe(view[:SEAL_BYTES])
    if fields is None:
        reason = "shorter than a seal" if len(view) < SEAL_BYTES else "no seal: the magic is missing"
        return SealReport(Outcome.CORRUPT, f"{reason} ({len(view)} bytes)", None)
    stride = len(view) - fields.payload_bytes
    if stride < SEAL_BYTES:
        reason = f"truncated: the seal speaks of {fields.payload_bytes} payload bytes, {len(view)} bytes are stored"
        return SealReport(Outcome.CORRUPT, reason, fields)
    wrong = _verify(view[:SEAL_BYTES].tobytes(), [view[stride:]], mac_key)
    if wrong or any(view[SEAL_BYTES:stride]):
        return SealReport(Outcome.CORRUPT, wrong or "the padding after the seal is not zero", fields)
    reason = _foreign(key, fields)
    return SealReport(Outcome.FOREIGN if reason else Outcome.HIT, reason, fields)


def mac_key_id(mac_key: bytes) -> str:
    """16 hex digits that name a MAC key in an identity without telling it."""
    return hashlib.blake2b(b"", digest_size=8, key=mac_key, person=b"hicache-key-id").hexdigest()


def _foreign(key: str, fields: SealFields) -> str:
    if fields.version != SEAL_VERSION or fields.reserved:
        return f"seal version {fields.version}, this reader knows {SEAL_VERSION}"
    if fields.namespace != key.partition("/")[0]:
        return f"sealed for namespace {fields.namespace}"
    if fields.key_hash != _xxh(key.encode()):
        return "sealed for another key of this namespace"
    return ""


def _verify(seal: bytes, payload: Sequence[Buffer], mac_key: bytes | None) -> str:
    """What is wrong with the tag or length by what the seal itself says; empty where both are right."""
    if len(seal) < SEAL_BYTES or seal[:8] != MAGIC:
        return "no seal: the magic is missing"
    prefix, tag = seal[:_PREFIX_BYTES], seal[_PREFIX_BYTES:]
    if int.from_bytes(seal[16:24], "little") != sum(map(len, payload)):
        return "the payload's length is not what the seal says"
    algorithm = seal[10]
    if algorithm == XXH3:
        right = _tag_of_regions(_xxh(prefix), [seal, *payload]).to_bytes(8, "little") + bytes(8)
    elif algorithm == MAC and mac_key:
        right = _mac(mac_key, prefix, payload)
    else:
        return "sealed with a MAC whose key was not given" if algorithm == MAC else f"unknown algorithm {algorithm}"
    return "" if hmac.compare_digest(tag, right) else "the tag does not fit: a byte of seal or payload has changed"


def _tag_of_regions(seed: int, page: Sequence[Buffer | bytes]) -> int:
    """xxh3-64 over the buffers after the first. Many small ones are joined: cheaper than a call for each."""
    if len(page) < 2:
        return _xxh(b"", seed)
    if len(page) > 3 and len(page[1]) <= _JOIN_BELOW:
        return _xxh(b"".join(page[1:]), seed)
    state = xxhash.xxh3_64(page[1], seed)
    for region in page[2:]:
        state.update(region)
    return state.intdigest()


def _mac(mac_key: bytes, prefix: bytes, payload: Sequence[Buffer]) -> bytes:
    state = hashlib.blake2b(prefix, digest_size=16, key=mac_key, person=_MAC_PERSON)
    for region in payload:
        state.update(region)
    return state.digest()


def _check_key(algorithm: int, mac_key: bytes | None) -> None:
    if algorithm not in (XXH3, MAC):
        raise ConfigError(f"unknown seal algorithm {algorithm}; known: 1 (xxh3-64), 2 (keyed MAC)")
    if algorithm == MAC and (mac_key is None or not 16 <= len(mac_key) <= 64):
        raise ConfigError("seal algorithm 2 needs a MAC key of 16 to 64 bytes")
    if algorithm == XXH3 and mac_key is not None:
        raise ConfigError("a MAC key has no effect with seal algorithm 1; choose algorithm 2 or leave the key out")
