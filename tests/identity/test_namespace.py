"""No two configurations whose bytes differ share a key."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_core.errors import IdentityError
from hicache_core.keys import chain_seed, page_hashes
from hicache_core.namespace import Identity, TransformIdentity, diff

BASE = Identity("org/model", "declared:v1", "bfloat16", 64, "mha", 30, 4, 64)
ZSTD = TransformIdentity("zstd", "1", "level=3")

CHANGES: dict[str, Any] = {
    "model": "org/model2",
    "weights": "declared:v2",
    "dtype": "float16",
    "page_size": 32,
    "kind": "mla",
    "layer_num": 31,
    "head_num": 8,
    "head_dim": 128,
    "v_head_dim": 32,
    "layout": "layer_first",
    "schema": 2,
    "tenant": "blue",
    "seal_version": 2,
    "seal_algorithm": 2,
    "seal_stride": 4096,
    "seal_key_id": "k1",
    "transforms": (ZSTD,),
}


def physical(identity: Identity, *, pool: str = "kv", extra_key: str | None = None, salt: str | None = None) -> str:
    hashes = page_hashes([1, 2, 3], 64, prior=chain_seed(extra_key, salt))
    return identity.key_schema().physical(hashes, pool)[0]


@pytest.mark.parametrize("name", CHANGES)
def test_each_single_change_changes_the_namespace(name: str) -> None:
    other = BASE.replace(**{name: CHANGES[name]})
    assert other.namespace() != BASE.namespace()
    assert name in diff(BASE, other)


def test_the_matrix_is_pairwise_distinct() -> None:
    """Every pair of variants, of identity and of request, has its own physical key."""
    keys = [physical(BASE)]
    keys += [physical(BASE.replace(**{name: value})) for name, value in CHANGES.items()]
    keys += [physical(BASE, pool="mamba"), physical(BASE, pool="draft")]
    keys += [
        physical(BASE.replace(layers=(0, 15))),
        physical(BASE.replace(heads=(0, 2))),
        physical(BASE.replace(heads=(2, 4))),
    ]
    keys += [physical(BASE, extra_key="lora-a"), physical(BASE, salt="t"), physical(BASE, extra_key="t")]
    keys += [physical(BASE, extra_key="a", salt="bc"), physical(BASE, extra_key="ab", salt="c")]
    assert len(set(keys)) == len(keys)


def test_every_field_is_in_the_matrix() -> None:
    """A field added later must be added to the matrix, or it would go untested."""
    fields = set(Identity.__dataclass_fields__)
    assert fields == set(CHANGES) | {"layers", "heads"}


def test_ranges_are_in_the_key_and_not_in_the_namespace() -> None:
    part = BASE.replace(layers=(0, 15), heads=(2, 4))
    assert part.namespace() == BASE.namespace()
    assert physical(part).endswith(".kv.l0-15h2-4")
    assert diff(BASE, part) == ["layers", "heads"]


ADVERSARIAL = [
    ({"model": "a", "tenant": "bc"}, {"model": "ab", "tenant": "c"}),
    ({"model": "a/b"}, {"model": "a-b"}),
    ({"model": "m_1"}, {"model": "m", "tenant": "_1"}),
    ({"model": "m", "dtype": "xint8"}, {"model": "mx", "dtype": "int8"}),
    ({"model": "é"}, {"model": "e\u0301"}),
    ({"layer_num": 1, "head_num": 12}, {"layer_num": 11, "head_num": 2}),
    ({"transforms": (TransformIdentity("a", "bc"),)}, {"transforms": (TransformIdentity("ab", "c"),)}),
    ({"transforms": (ZSTD, TransformIdentity("x", "1"))}, {"transforms": (TransformIdentity("x", "1"), ZSTD)}),
    ({"transforms": (TransformIdentity("a", "1", "k"),)}, {"transforms": (TransformIdentity("a", "1", "", "k"),)}),
    ({"model": "m\0", "tenant": ""}, {"model": "m", "tenant": "\0"}),
]


@pytest.mark.parametrize(("a", "b"), ADVERSARIAL)
def test_adversarial_pairs_differ(a: dict[str, Any], b: dict[str, Any]) -> None:
    assert BASE.replace(**a).namespace() != BASE.replace(**b).namespace()


names = st.text(max_size=6)
fields = st.fixed_dictionaries(
    {
        "model": st.text(min_size=1, max_size=6),
        "weights": names.map("declared:x{}".format),
        "tenant": names,
        "layer_num": st.integers(1, 200),
        "head_num": st.integers(1, 200),
        "transforms": st.lists(st.builds(TransformIdentity, names, names, names, names), max_size=2).map(tuple),
    }
)


@given(fields, fields)
def test_namespaces_are_equal_only_for_equal_identities(a: dict[str, Any], b: dict[str, Any]) -> None:
    one, other = BASE.replace(**a), BASE.replace(**b)
    assert (one.encoded() == other.encoded()) == (one == other)
    assert (one.namespace() == other.namespace()) == (one == other)
    assert (diff(one, other) == []) == (one == other)


def test_golden_namespaces() -> None:
    """These must never change while NAMESPACE_VERSION is 1: a change would lose every store."""
    assert BASE.namespace() == "ecc51668206d482915a80d55363ac216"
    assert BASE.replace(tenant="blue", transforms=(ZSTD,)).namespace() == "8f71792122c25fcc276f0d46c643170c"


def test_encoding_is_versioned() -> None:
    assert BASE.encoded().startswith(b"hicache-namespace\x01\x00\x00\x00")


@pytest.mark.parametrize("weights", ["", "v1", "declared:", "sampled:", "guess:abc"])
def test_unnamed_weights_are_refused(weights: str) -> None:
    with pytest.raises(IdentityError, match="which weights"):
        BASE.replace(weights=weights)


@pytest.mark.parametrize(
    "change",
    [
        {"model": ""},
        {"dtype": ""},
        {"layout": ""},
        {"page_size": 48},
        {"page_size": 0},
        {"layer_num": 0},
        {"layers": (3, 3)},
        {"layers": (0, 31)},
        {"heads": (-1, 2)},
        {"kind": "gqa"},
        {"seal_stride": 32},
        {"seal_algorithm": 0},
        {"seal_stride": 0},
    ],
)
def test_what_cannot_be_is_refused(change: dict[str, Any]) -> None:
    (name,) = change
    with pytest.raises(IdentityError, match=name):
        BASE.replace(**change)


def test_unsealed_identity() -> None:
    assert BASE.replace(seal_algorithm=0, seal_stride=0).namespace() != BASE.namespace()


def test_whole_ranges_follow_the_geometry() -> None:
    assert BASE.replace(layer_num=8, head_num=2).layers == (0, 8)
    assert BASE.replace(head_dim=32).v_head_dim == 32
    assert BASE.replace(layers=(0, 15)).replace(tenant="x").layers == (0, 15)


def test_equal_values_make_equal_namespaces() -> None:
    explicit = Identity(
        "org/model", "declared:v1", "bfloat16", 64, "mha", 30, 4, 64, 64, layers=(0, 30), heads=(0, 4)
    )
    assert explicit == BASE
    assert all(a.namespace() == b.namespace() for a, b in itertools.pairwise([BASE, explicit, BASE.replace()]))
