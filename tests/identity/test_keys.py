"""Page hashes equal SGLang's; physical keys have one form."""

from __future__ import annotations

import hashlib
import json
from array import array
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_core.keys import KeySchema, ParsedKey, chain_seed, page_digests, page_hashes, parse_key
from hicache_core.types import KEY_PATTERN, PoolName

VECTORS = Path(__file__).parent / "page_hash_vectors.json"
"""Computed by SGLang 0.5.23 itself."""
NAMESPACE = "0123456789abcdef" * 2


def reference(tokens: list[int], page_size: int, prior: bytes = b"", bigram: bool = False) -> list[str]:
    """The rule, written as plainly as it can be."""
    positions = len(tokens) - 1 if bigram else len(tokens)
    hashes = []
    for start in range(0, positions, page_size):
        end = min(start + page_size, positions)
        words = [w for i in range(start, end) for w in ((tokens[i], tokens[i + 1]) if bigram else (tokens[i],))]
        if max(words) > 0xFFFFFFFF:
            payload = b"\xff" + b"".join(w.to_bytes(8, "little") for w in words)
        else:
            payload = b"".join(w.to_bytes(4, "little") for w in words)
        prior = hashlib.sha256(prior + payload).digest()
        hashes.append(prior.hex())
    return hashes


def test_every_published_vector() -> None:
    vectors = json.loads(VECTORS.read_text())["vectors"]
    kinds = set()
    for vector in vectors:
        prior = bytes.fromhex(vector["prior"]) if "prior" in vector else None
        if vector["kind"] == "namespaced":
            prior = chain_seed(vector["extra_key"], vector["cache_salt"])
            assert prior is not None
            assert prior.hex() == vector["seed"]
        bigram = vector["kind"] == "bigram"
        assert page_hashes(vector["tokens"], vector["page_size"], prior=prior, bigram=bigram) == vector["hashes"]
        kinds.add(vector["kind"])
    assert kinds == {"plain", "continued", "namespaced", "wide", "bigram"}


def test_golden_hashes() -> None:
    """Computed by hand with hashlib: where these differ, nobody else's code is at fault."""
    assert page_hashes([1, 2, 3, 4, 5], 2) == [
        "34fb5c825de7ca4aea6e712f19d439c1da0c92c37b423936c5f618545ca4fa1f",
        "c57b445f90651b9a650e516ab2238c965b21af35608a31c303e6d9e407f2915c",
        "e1fd781b60f933e64fe17100c521f3130659b4761e25f7b79abcf81ae5aa23cf",
    ]
    assert page_hashes([2**32, 7], 2, prior=chain_seed("lora", "salt")) == [
        "64ad1fc8afa4a21c3879ff9c35aa54033efb1c604e527abb7e56f7655f020ad0"
    ]
    assert page_hashes([1, 2, 3], 2, bigram=True) == [
        "ede8ef26a097f0fd889f9f39f6f5af921370630b164c4a4fa28eb716b2df9269"
    ]


@pytest.mark.parametrize(
    "make",
    [
        list,
        lambda t: array("q", t),
        lambda t: np.array(t, np.int64),
        lambda t: np.array(t, np.uint32),
        lambda t: np.array(t, np.uint64),
        lambda t: np.array(t, ">u4"),
        lambda t: np.repeat(np.array(t, np.uint32), 2)[::2],
    ],
)
def test_every_form_of_tokens_hashes_alike(make) -> None:  # type: ignore[no-untyped-def]
    tokens = [(i * 7919) % 150_000 for i in range(130)]
    assert page_hashes(make(tokens), 64) == reference(tokens, 64)


@given(
    st.lists(st.integers(0, 2**32 - 1) | st.integers(2**32, 2**64 - 1), max_size=40),
    st.sampled_from([1, 2, 4, 16]),
    st.booleans(),
    st.none() | st.binary(min_size=32, max_size=32),
)
def test_equals_the_plain_rule(tokens: list[int], page_size: int, bigram: bool, prior: bytes | None) -> None:
    expected = reference(tokens, page_size, prior or b"", bigram)
    assert page_hashes(tokens, page_size, prior=prior, bigram=bigram) == expected


def test_a_continued_chain_equals_the_whole() -> None:
    tokens = np.arange(256, dtype=np.uint32)
    whole = page_digests(tokens, 64)
    assert page_digests(tokens[128:], 64, prior=whole[1]) == whole[2:]


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        ([1, -2], "-2 at position 1"),
        ([0.5], "integers"),
        (["a"], "integers"),
        ([2**70], "2\\*\\*64"),
        ([2**63, -1], "2\\*\\*64"),
        ([[1], [2]], "one-dimensional"),
        ([True], "integers"),
    ],
)
def test_what_is_no_token_is_refused(tokens: list[object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        page_hashes(tokens, 4)  # type: ignore[arg-type]


def test_bad_page_size_and_prior_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        page_hashes([1], 0)
    with pytest.raises(ValueError, match="32 bytes"):
        page_hashes([1], 1, prior=b"short")


def test_nothing_hashes_to_nothing() -> None:
    assert page_hashes([], 16) == []
    assert page_hashes([5], 16, bigram=True) == []


def test_seeds_keep_key_and_salt_apart() -> None:
    pairs = [
        (None, "a"),
        ("a", None),
        ("a", "bc"),
        ("ab", "c"),
        ("", "a"),
        ("a", "b"),
        ("lora", "t1"),
        ("lora", "t2"),
    ]
    seeds = [chain_seed(*pair) for pair in pairs]
    assert None not in seeds
    assert len(set(seeds)) == len(pairs)
    assert chain_seed(None, None) is None
    assert chain_seed("a", "") == chain_seed("a", None)


def test_physical_keys_name_pool_layers_and_heads() -> None:
    hashes = page_hashes([1, 2, 3], 1)
    keys = KeySchema(NAMESPACE, (0, 30), (0, 3)).physical(hashes)
    assert keys[1] == f"{NAMESPACE}/{hashes[1]}.kv.l0-30h0-3"
    others = [
        KeySchema(NAMESPACE, (0, 30), (0, 3)).physical(hashes, PoolName.MAMBA),
        KeySchema(NAMESPACE, (0, 15), (0, 3)).physical(hashes),
        KeySchema(NAMESPACE, (0, 30), (1, 3)).physical(hashes),
        KeySchema(NAMESPACE[::-1], (0, 30), (0, 3)).physical(hashes),
    ]
    assert len({keys[0], *(other[0] for other in others)}) == 5
    assert all(KEY_PATTERN.fullmatch(key) for key in keys + others[0])


def test_a_key_parses_back() -> None:
    page_hash = page_hashes([9], 1)[0]
    key = KeySchema(NAMESPACE, (4, 8), (0, 2)).physical([page_hash], "draft_swa")[0]
    assert parse_key(key) == ParsedKey(NAMESPACE, page_hash, "draft_swa", (4, 8), (0, 2))
    assert parse_key(key + "x") is None
    assert parse_key("somebody/elses.file") is None


@pytest.mark.parametrize(
    ("namespace", "layers", "pool"),
    [
        ("0123", (0, 1), "kv"),
        (NAMESPACE.upper(), (0, 1), "kv"),
        (NAMESPACE, (3, 3), "kv"),
        (NAMESPACE, (0, 1), "a/b"),
    ],
)
def test_a_key_that_cannot_be_is_refused(namespace: str, layers: tuple[int, int], pool: str) -> None:
    with pytest.raises(ValueError):
        KeySchema(namespace, layers, (0, 1)).physical(["0" * 64], pool)
