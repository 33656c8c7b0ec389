"""What a page's bytes depend on is in its key: change any one thing, and it is another key, on this store too."""

from __future__ import annotations

from typing import Any

from hicache_conformance.casebook import case
from hicache_conformance.harness import Harness
from hicache_conformance.sessioning import identity_of, session_on
from hicache_conformance.verdict import check, check_equal
from hicache_core.keys import chain_seed, page_hashes
from hicache_core.namespace import Identity, TransformIdentity
from hicache_core.types import KEY_PATTERN, Outcome


def _tokens(h: Harness) -> list[int]:
    """Of this round's own: some of the identities below are the same in every round, and so would their keys be."""
    first = int(h.namespace()[:6], 16)
    return list(range(first, first + 64))


CHANGES: dict[str, dict[str, Any]] = {
    "model": {"model": "another"},
    "weights": {"weights": "declared:another"},
    "how weights were identified": {"weights": "sampled:conformance"},
    "dtype": {"dtype": "float16"},
    "layout": {"layout": "layer_first"},
    "page size": {"page_size": 32},
    "layers": {"layer_num": 3},
    "heads": {"head_num": 5},
    "head dim": {"head_dim": 32},
    "V head dim": {"v_head_dim": 8},
    "kind of attention": {"kind": "mla", "head_num": 1},
    "schema": {"schema": 2},
    "tenant": {"tenant": "another"},
    "seal key": {"seal_key_id": "another"},
    "seal stride": {"seal_stride": 4096},
    "a transform": {"transforms": (TransformIdentity("xor", "1"),)},
    "a transform's key": {"transforms": (TransformIdentity("xor", "1", key_id="5a"),)},
    "layer range": {"layers": (0, 1)},
    "another layer range": {"layers": (1, 2)},
    "head range": {"heads": (0, 2)},
    "another head range": {"heads": (2, 4)},
}
"""Every dimension of an identity, each changed by itself."""

REQUESTS: dict[str, tuple[str | None, str | None]] = {
    "LoRA": ("lora-a", None),
    "another LoRA": ("lora-b", None),
    "an empty LoRA": ("", None),
    "salt": (None, "tenant-a"),
    "LoRA and salt": ("lora-a", "tenant-a"),
    "LoRA and salt, otherwise cut": ("lora-", "atenant-a"),
    "salt in place of LoRA": (None, "lora-a"),
}
"""(extra key, salt) of requests: what seeds the hash chain."""

ALIKE: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({"model": "a", "tenant": "bc"}, {"model": "ab", "tenant": "c"}),
    ({"model": "a/b"}, {"model": "a-b"}),
    ({"model": "m_1", "layers": (0, 1)}, {"model": "m", "layers": (1, 2)}),
    ({"model": "a", "weights": "declared:b"}, {"model": "adeclared:b", "weights": "declared:declared:b"}),
    ({"model": "m", "tenant": "None"}, {"model": "m", "tenant": ""}),
    ({"model": "Model"}, {"model": "model"}),
    ({"model": "m", "tenant": "t\0"}, {"model": "m", "tenant": "t"}),
    ({"model": "é"}, {"model": "e\u0301"}),
    ({"layer_num": 12, "layers": (1, 2)}, {"layer_num": 12, "layers": (1, 12)}),
    ({"head_num": 12, "heads": (1, 12)}, {"head_num": 12, "heads": (11, 12)}),
    ({"head_num": 12, "heads": (0, 12)}, {"head_num": 12, "heads": (0, 1)}),
)
"""Pairs that read alike where parts are joined without their lengths, folded, or cut."""


def _all_keys(h: Harness) -> dict[str, str]:
    """The key of one page under the plain identity and under every single change."""
    plain = _hash(h, None, None)
    found = {"nothing": _key(identity_of(h), plain)}
    for name, change in CHANGES.items():
        found[name] = _key(identity_of(h, **change), plain)
    for name, (extra, salt) in REQUESTS.items():
        found[name] = _key(identity_of(h), _hash(h, extra, salt))
    for pool in ("indexer", "swa", "mamba", "draft", "draft_indexer"):
        found[f"pool {pool}"] = identity_of(h).key_schema().physical([plain], pool)[0]
    found["page size of the chain"] = _key(identity_of(h), page_hashes(_tokens(h), 32)[0])
    found["another token"] = _key(identity_of(h), page_hashes([*_tokens(h)[:15], 99], 16)[0])
    return found


def _hash(h: Harness, extra: str | None, salt: str | None) -> str:
    return page_hashes(_tokens(h), 16, prior=chain_seed(extra, salt))[0]


def _key(identity: Identity, page_hash: str) -> str:
    return identity.key_schema().physical([page_hash])[0]


def _distinct(keys: dict[str, str]) -> None:
    seen: dict[str, str] = {}
    for name, key in keys.items():
        check(KEY_PATTERN.fullmatch(key) is not None, f"the key after a change of {name} breaks the rule: {key!r}")
        other = seen.setdefault(key, name)
        check(other == name, f"a change of {name} and a change of {other} make the same key {key!r}")


@case("core", "identity")
def every_part_of_the_identity_changes_the_key(h: Harness) -> None:
    """Model, weights, dtype, layout, page size, geometry, LoRA, salt, tenant, pool, layer range, head range, seal,
    transforms: changed one by one, all keys differ, and the store keeps a page under each, with its own bytes.
    """
    keys = _all_keys(h)
    _distinct(keys)
    store = h.open()
    every = [h.own(key) for key in keys.values()]
    for name, key in zip(keys, every, strict=True):
        check_equal(store.exists([key]), 0, f"exists of the page with another {name}, before it was set")
        h.store(store, [key])
    h.expect_hits(store, every)
    check_equal(store.exists(every), len(every), "exists of the pages of all identities")


@case("core", "identity: adversarial pairs")
def identities_that_read_alike_are_apart(h: Harness) -> None:
    """("a", "bc") and ("ab", "c"), "a/b" and "a-b", layers 1-2 and 1-12 …: another key each, apart in the store."""
    store = h.open()
    plain = _hash(h, None, None)
    for one, other in ALIKE:
        keys = [_key(identity_of(h, **change), plain) for change in (one, other)]
        _distinct(dict(zip((str(one), str(other)), keys, strict=True)))
        first, second = (h.own(key) for key in keys)
        h.store(store, [first])
        h.expect_gone(store, [second])
        h.store(store, [second], version=1)
        h.expect_hits(store, [first])
        h.expect_hits(store, [second], version=1)


@case("core", "identity", rounds=1)
def sessions_that_read_alike_share_nothing(h: Harness) -> None:
    """Sessions whose model and tenant join to one text, and shards of one model, miss each other's pages."""
    label = h.namespace()
    pairs: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
        ({"model": f"{label}a", "tenant": "bc"}, {"model": f"{label}ab", "tenant": "c"}),
        ({"heads": (0, 2)}, {"heads": (2, 4)}),
        ({"layers": (0, 1)}, {"layers": (1, 2)}),
    )
    for one, other in pairs:
        mine, theirs = (session_on(h, identity=identity_of(h, **change)) for change in (one, other))
        hashes = mine.hashes(3)
        check_equal(mine.put(hashes), [Outcome.STORED] * 3, f"set under {one}")
        check_equal(theirs.session.exists(hashes), 0, f"exists under {other} of pages stored under {one}")
        check_equal(theirs.read(hashes)[0], [Outcome.MISS] * 3, f"get under {other} of pages stored under {one}")
        check_equal(theirs.put(hashes, version=1), [Outcome.STORED] * 3, f"set under {other}")
        mine.expect_hits(hashes)
        theirs.expect_hits(hashes, version=1)
        theirs.session.close()
        mine.session.close()
