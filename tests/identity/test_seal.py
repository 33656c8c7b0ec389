"""The seal finds every change, tells foreign pages from damaged ones, and never changes its form."""

from __future__ import annotations

import itertools
import random
import struct

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from hicache_core.errors import ConfigError
from hicache_core.seal import MAC, SEAL_BYTES, XXH3, Sealer, describe, inspect, mac_key_id
from hicache_core.types import Outcome

NAMESPACE = "00112233445566778899aabbccddeeff"
OTHER = "ff" * 16
KEY = f"{NAMESPACE}/{'ab' * 32}.kv.l0-2h0-1"
KEY2 = f"{NAMESPACE}/{'cd' * 32}.kv.l0-2h0-1"
SECRET = bytes(range(32))


def sealers() -> list[Sealer]:
    return [
        Sealer(NAMESPACE),
        Sealer(NAMESPACE, stride=512),
        Sealer(NAMESPACE, algorithm=MAC, mac_key=SECRET),
        Sealer(NAMESPACE, stride=128, algorithm=MAC, mac_key=SECRET),
    ]


def regions(payload: bytes, count: int) -> list[memoryview]:
    view = memoryview(bytearray(payload))
    cuts = [len(payload) * i // count for i in range(count + 1)]
    return [view[a:b] for a, b in itertools.pairwise(cuts)]


def stamped(sealer: Sealer, payload: bytes, count: int = 2, key: str = KEY) -> list[memoryview]:
    page = [memoryview(bytearray(b"\xaa" * sealer.stride)), *regions(payload, count)]
    sealer.stamp(key, page[1:], page[0])
    return page


def test_golden_xxh3() -> None:
    """Written once; a reader of any later version must still accept these bytes."""
    page = stamped(Sealer(NAMESPACE), bytes(range(256)))
    assert page[0].hex() == (
        "4849435345414c000100010002000000000100000000000000112233445566778899aabbccddeeff596f6d26aad9eb39"
        "0698a35e5a6cf9080000000000000000"
    )


def test_golden_mac() -> None:
    page = stamped(Sealer(NAMESPACE, algorithm=MAC, mac_key=SECRET), bytes(range(256)))
    assert page[0].hex() == (
        "4849435345414c000100020002000000000100000000000000112233445566778899aabbccddeeff596f6d26aad9eb39"
        "684a30badc44aef166d01c4df74308a5"
    )


def test_fields_stand_where_the_contract_says() -> None:
    payload = bytes(range(256))
    seal = bytes(stamped(Sealer(NAMESPACE), payload, 4)[0])
    assert seal[:8] == b"HICSEAL\0"
    assert struct.unpack_from("<HBBIQ", seal, 8) == (1, 1, 0, 4, 256)
    assert seal[24:40].hex() == NAMESPACE
    assert struct.unpack_from("<Q", seal, 40)[0] == xxhash.xxh3_64_intdigest(KEY.encode())
    seed = xxhash.xxh3_64_intdigest(seal[:48])
    assert struct.unpack_from("<QQ", seal, 48) == (xxhash.xxh3_64_intdigest(payload, seed), 0)


@pytest.mark.parametrize("sealer", sealers(), ids=["xxh3", "xxh3-512", "mac", "mac-128"])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 60, 200])
def test_what_is_stamped_is_a_hit(sealer: Sealer, count: int) -> None:
    payload = random.Random(count).randbytes(4096) if count else b""
    page = stamped(sealer, payload, count) if count else [memoryview(bytearray(sealer.stride))]
    if not count:
        sealer.stamp(KEY, [], page[0])
    assert sealer.check(KEY, page[0], page[1:], len(payload)) is Outcome.HIT
    assert not any(page[0][SEAL_BYTES:])


def test_the_number_of_regions_is_never_compared() -> None:
    sealer = Sealer(NAMESPACE)
    payload = random.Random(1).randbytes(1024)
    written = stamped(sealer, payload, 8)
    for count in (1, 2, 5):
        assert sealer.check(KEY, written[0], regions(payload, count)) is Outcome.HIT


@pytest.mark.parametrize("sealer", sealers(), ids=["xxh3", "xxh3-512", "mac", "mac-128"])
def test_every_single_bit_flip_in_the_seal_is_seen(sealer: Sealer) -> None:
    page = stamped(sealer, random.Random(2).randbytes(96))
    for bit in range(8 * sealer.stride):
        page[0][bit // 8] ^= 1 << bit % 8
        assert sealer.check(KEY, page[0], page[1:]) in (Outcome.CORRUPT, Outcome.FOREIGN), bit
        page[0][bit // 8] ^= 1 << bit % 8
    assert sealer.check(KEY, page[0], page[1:]) is Outcome.HIT


@given(
    payload=st.binary(min_size=1, max_size=600),
    count=st.integers(1, 5),
    where=st.integers(0),
    which=st.integers(0, 3),
)
def test_any_bit_flip_in_the_payload_is_corrupt(payload: bytes, count: int, where: int, which: int) -> None:
    sealer = sealers()[which]
    page = stamped(sealer, payload, count)
    bit = where % (8 * len(payload))
    damaged = bytearray(payload)
    damaged[bit // 8] ^= 1 << bit % 8
    assert sealer.check(KEY, page[0], regions(bytes(damaged), count)) is Outcome.CORRUPT


@given(payload=st.binary(min_size=1, max_size=600), cut=st.integers(1), which=st.integers(0, 3))
def test_truncation_is_corrupt(payload: bytes, cut: int, which: int) -> None:
    sealer = sealers()[which]
    page = stamped(sealer, payload, 1)
    shorter = payload[: len(payload) - 1 - cut % len(payload)]
    assert sealer.check(KEY, page[0], regions(shorter, 1)) is Outcome.CORRUPT
    assert sealer.check(KEY, page[0], page[1:], len(shorter)) is Outcome.CORRUPT
    zeroed = shorter + bytes(len(payload) - len(shorter))
    expected = Outcome.HIT if zeroed == payload else Outcome.CORRUPT
    assert sealer.check(KEY, page[0], regions(zeroed, 1)) is expected


def test_regions_in_another_order_are_corrupt() -> None:
    sealer = Sealer(NAMESPACE)
    page = stamped(sealer, random.Random(3).randbytes(128), 2)
    assert sealer.check(KEY, page[0], [page[2], page[1]]) is Outcome.CORRUPT


def restamp(page: list[memoryview], offset: int, data: bytes) -> None:
    """Change a field and make the tag right again: a sound page that says something else."""
    page[0][offset : offset + len(data)] = data
    seed = xxhash.xxh3_64_intdigest(page[0][:48])
    struct.pack_into("<QQ", page[0], 48, xxhash.xxh3_64_intdigest(b"".join(page[1:]), seed), 0)


def test_a_sound_page_of_another_is_foreign() -> None:
    ours = Sealer(NAMESPACE)
    payload = random.Random(4).randbytes(256)
    other_namespace = stamped(Sealer(OTHER), payload)
    other_key = stamped(ours, payload, key=KEY2)
    later_version = stamped(ours, payload)
    restamp(later_version, 8, struct.pack("<H", 2))
    reserved = stamped(ours, payload)
    restamp(reserved, 11, b"\x01")
    for page in (other_namespace, other_key, later_version, reserved):
        assert ours.check(KEY, page[0], page[1:]) is Outcome.FOREIGN
    keyed = Sealer(NAMESPACE, algorithm=MAC, mac_key=SECRET)
    plain = stamped(ours, payload)
    assert keyed.check(KEY, plain[0], plain[1:]) is Outcome.FOREIGN


def test_a_tag_that_cannot_be_verified_is_corrupt() -> None:
    payload = bytes(64)
    keyed = stamped(Sealer(NAMESPACE, algorithm=MAC, mac_key=SECRET), payload)
    assert Sealer(NAMESPACE).check(KEY, keyed[0], keyed[1:]) is Outcome.CORRUPT
    other_secret = Sealer(NAMESPACE, algorithm=MAC, mac_key=SECRET[::-1])
    assert other_secret.check(KEY, keyed[0], keyed[1:]) is Outcome.CORRUPT
    unknown = stamped(Sealer(NAMESPACE), payload)
    restamp(unknown, 10, b"\x09")
    assert Sealer(NAMESPACE).check(KEY, unknown[0], unknown[1:]) is Outcome.CORRUPT


def test_a_forged_page_does_not_pass_the_mac() -> None:
    """Whoever can write the store can make xxh3 fit, but not the MAC."""
    keyed = Sealer(NAMESPACE, algorithm=MAC, mac_key=SECRET)
    forged = stamped(Sealer(NAMESPACE), b"evil" * 64)
    forged[0][:48] = keyed.prefix(KEY, 256, 2)
    seed = xxhash.xxh3_64_intdigest(forged[0][:48])
    struct.pack_into("<QQ", forged[0], 48, xxhash.xxh3_64_intdigest(b"evil" * 64, seed), 0)
    assert keyed.check(KEY, forged[0], forged[1:]) is Outcome.CORRUPT


def test_a_wrong_length_is_corrupt_even_with_a_right_tag() -> None:
    page = stamped(Sealer(NAMESPACE), bytes(100))
    restamp(page, 16, struct.pack("<Q", 101))
    assert Sealer(NAMESPACE).check(KEY, page[0], page[1:]) is Outcome.CORRUPT


def test_unwritten_memory_is_corrupt() -> None:
    for fill in (0, 0xAA, 0xFF):
        page = [memoryview(bytearray([fill]) * 64), memoryview(bytearray([fill]) * 256)]
        assert Sealer(NAMESPACE).check(KEY, page[0], page[1:]) is Outcome.CORRUPT


def test_batches_judge_each_page_alone() -> None:
    sealer = Sealer(NAMESPACE)
    rng = random.Random(5)
    keys = [f"{NAMESPACE}/{i:064x}.kv.l0-2h0-1" for i in range(6)]
    pages = [stamped(sealer, rng.randbytes(64 * (1 + i % 2)), 1 + i % 3, key) for i, key in enumerate(keys)]
    pages[1][1][3] ^= 1
    pages[4] = stamped(sealer, bytes(64), key=KEY)
    hit, corrupt, foreign = Outcome.HIT, Outcome.CORRUPT, Outcome.FOREIGN
    assert sealer.check_batch(keys, pages) == [hit, corrupt, hit, hit, foreign, hit]
    assert sealer.check_batch([], []) == []


def test_prepared_prefixes_can_be_kept() -> None:
    sealer = Sealer(NAMESPACE)
    keys = [KEY, KEY2]
    prepared = sealer.prepare(keys, 64, 1)
    pages = [[memoryview(bytearray(64)), memoryview(bytearray(b"x" * 64))] for _ in keys]
    sealer.stamp_batch(keys, pages, prepared)
    assert sealer.check_batch(keys, pages, prepared) == sealer.check_batch(keys, pages) == [Outcome.HIT] * 2
    assert prepared[0][0] == bytes(pages[0][0][:48]) == sealer.prefix(KEY, 64, 1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"stride": 32}, "64 bytes"),
        ({"algorithm": 7}, "unknown seal algorithm 7"),
        ({"algorithm": MAC}, "MAC key"),
        ({"algorithm": MAC, "mac_key": b"short"}, "16 to 64"),
        ({"algorithm": XXH3, "mac_key": SECRET}, "no effect"),
        ({"namespace_hex": "ab"}, "32 hex"),
    ],
)
def test_what_cannot_work_is_refused(arguments: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Sealer(**{"namespace_hex": NAMESPACE, **arguments})  # type: ignore[arg-type]


def test_describe_reads_every_field() -> None:
    fields = describe(stamped(Sealer(NAMESPACE, stride=256), bytes(300), 3)[0])
    assert fields is not None
    assert (fields.version, fields.algorithm, fields.reserved) == (1, XXH3, 0)
    assert (fields.regions, fields.payload_bytes, fields.namespace) == (3, 300, NAMESPACE)
    assert describe(bytes(64)) is None
    assert describe(b"HICSEAL\0") is None


@pytest.mark.parametrize("sealer", sealers(), ids=["xxh3", "xxh3-512", "mac", "mac-128"])
def test_inspect_judges_a_stored_object_by_its_key(sealer: Sealer) -> None:
    payload = random.Random(6).randbytes(200)
    stored = b"".join(stamped(sealer, payload))
    mac_key = SECRET if sealer.algorithm == MAC else None
    assert inspect(KEY, stored, mac_key=mac_key).outcome is Outcome.HIT
    assert inspect(KEY2, stored, mac_key=mac_key).outcome is Outcome.FOREIGN
    foreign = inspect(KEY.replace(NAMESPACE, OTHER), stored, mac_key=mac_key)
    assert foreign.outcome is Outcome.FOREIGN
    assert NAMESPACE in foreign.reason
    for size in range(len(stored)):
        assert inspect(KEY, stored[:size], mac_key=mac_key).outcome is Outcome.CORRUPT
    assert inspect(KEY, stored + b"\0", mac_key=mac_key).outcome is Outcome.CORRUPT


def test_inspect_says_why() -> None:
    stored = bytearray(b"".join(stamped(Sealer(NAMESPACE), bytes(64))))
    assert "shorter than a seal" in inspect(KEY, stored[:10]).reason
    assert "truncated" in inspect(KEY, stored[:100]).reason
    stored[70] ^= 1
    assert "has changed" in inspect(KEY, stored).reason
    assert "no seal" in inspect(KEY, bytes(200)).reason
    keyed = b"".join(stamped(Sealer(NAMESPACE, algorithm=MAC, mac_key=SECRET), bytes(64)))
    assert "key was not given" in inspect(KEY, keyed).reason


def test_a_mac_key_is_named_not_told() -> None:
    assert mac_key_id(SECRET) != mac_key_id(SECRET[::-1])
    assert len(mac_key_id(SECRET)) == 16
