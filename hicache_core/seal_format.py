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

import msgspec
import xxhash

from hicache_core.types import Buffer, Outcome

SEAL_BYTES = 64
SEAL_VERSION = 1
XXH3, MAC = 1, 2
"""Algorithms: xxh3-64 finds damage; the keyed MAC also finds forgery."""

MAGIC = b"HICSEAL\0"
PREFIX = struct.Struct("<8sHBBIQ16sQ")
PREFIX_BYTES = 48
_MAC_PERSON = b"hicache-seal"

xxh = xxhash.xxh3_64_intdigest
_stream = xxhash.xxh3_64


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
    certain: bool = True
    """False where the object alone does not tell damage from a page that this reader cannot judge: one that was
    never sealed, one sealed with another key, one of a later version."""


def describe(seal: bytes | Buffer) -> SealFields | None:
    """The fields of a seal, for tools; None where the magic is missing or fewer than 64 bytes are there."""
    raw = bytes(seal[:SEAL_BYTES])
    if len(raw) < SEAL_BYTES or raw[:8] != MAGIC:
        return None
    _, version, algorithm, reserved, regions, nbytes, namespace, key_hash = PREFIX.unpack(raw[:PREFIX_BYTES])
    tag = raw[PREFIX_BYTES:].hex()
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
        return SealReport(Outcome.CORRUPT, f"{reason} ({len(view)} bytes)", None, certain=False)
    stride = len(view) - fields.payload_bytes
    if stride < SEAL_BYTES:
        reason = f"truncated: the seal speaks of {fields.payload_bytes} payload bytes, {len(view)} bytes are stored"
        return SealReport(Outcome.CORRUPT, reason, fields)
    wrong = verify(view[:SEAL_BYTES].tobytes(), [view[stride:]], mac_key)
    if wrong or any(view[SEAL_BYTES:stride]):
        certain = fields.algorithm == XXH3
        return SealReport(Outcome.CORRUPT, wrong or "the padding after the seal is not zero", fields, certain)
    reason = _foreign(key, fields)
    return SealReport(Outcome.FOREIGN if reason else Outcome.HIT, reason, fields)


def mac_key_id(mac_key: bytes) -> str:
    """16 hex digits that name a MAC key in an identity without telling it."""
    return hashlib.blake2b(b"", digest_size=8, key=mac_key, person=b"hicache-key-id").hexdigest()


def verify(seal: bytes, payload: Sequence[Buffer], mac_key: bytes | None) -> str:
    """What is wrong with the tag or length by what the seal itself says; empty where both are right."""
    if len(seal) < SEAL_BYTES or seal[:8] != MAGIC:
        return "no seal: the magic is missing"
    prefix, tag = seal[:PREFIX_BYTES], seal[PREFIX_BYTES:]
    if int.from_bytes(seal[16:24], "little") != sum(map(len, payload)):
        return "the payload's length is not what the seal says"
    algorithm = seal[10]
    if algorithm == XXH3:
        right = tag_of_regions(xxh(prefix), payload).to_bytes(8, "little") + bytes(8)
    elif algorithm == MAC and mac_key:
        right = mac_tag(mac_key, prefix, payload)
    else:
        return "sealed with a MAC whose key was not given" if algorithm == MAC else f"unknown algorithm {algorithm}"
    return "" if hmac.compare_digest(tag, right) else "the tag does not fit: a byte of seal or payload has changed"


def tag_of_regions(seed: int, buffers: Sequence[Buffer], first: int = 0) -> int:
    """Algorithm 1's tag over `buffers` from the index `first` on."""
    if len(buffers) <= first:
        return xxh(b"", seed)
    state = _stream(buffers[first], seed)
    for region in buffers[first + 1 :]:
        state.update(region)
    return state.intdigest()


def mac_tag(mac_key: bytes, prefix: bytes, payload: Sequence[Buffer]) -> bytes:
    state = hashlib.blake2b(prefix, digest_size=16, key=mac_key, person=_MAC_PERSON)
    for region in payload:
        state.update(region)
    return state.digest()


def _foreign(key: str, fields: SealFields) -> str:
    if fields.version != SEAL_VERSION or fields.reserved:
        return f"seal version {fields.version}, this reader knows {SEAL_VERSION}"
    if fields.namespace != key.partition("/")[0]:
        return f"sealed for namespace {fields.namespace}"
    if fields.key_hash != xxh(key.encode()):
        return "sealed for another key of this namespace"
    return ""
