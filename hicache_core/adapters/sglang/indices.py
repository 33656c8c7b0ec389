"""From SGLang's terms to ours: token-level host indices to page slots, storage keys to page hashes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from hicache_core.types import Slots

_HASH_LENGTH = 64


def page_slots(indices: Any, pages: int, page_size: int) -> Slots:
    """One slot per page: int64[pages].

    indices: the token slots of whole pages in order, pages * page_size of them: a CPU tensor, array or sequence.
    Raises ValueError where they are not that: a page that does not begin on its boundary or has a gap would be
    another page's bytes.
    """
    tokens = np.asarray(indices, np.int64).reshape(-1)
    if len(tokens) != pages * page_size:
        raise ValueError(
            f"{pages} keys need {pages * page_size} host indices of {page_size} a page, got {len(tokens)}"
        )
    rows = tokens.reshape(pages, page_size)
    first = rows[:, 0]
    slots = first // page_size
    if (slots * page_size != first).any():
        bad = int(np.flatnonzero(slots * page_size != first)[0])
        raise ValueError(f"host index {int(first[bad])} of page {bad} is not on a boundary of {page_size} tokens")
    if page_size > 1 and (np.diff(rows, axis=1) != 1).any():
        bad = int(np.flatnonzero((np.diff(rows, axis=1) != 1).any(axis=1))[0])
        raise ValueError(f"the host indices of page {bad} are not {page_size} in a row")
    if pages and int(slots.min()) < 0:
        raise ValueError(f"host index {int(first.min())} is below 0")
    return slots


def as_hashes(keys: Sequence[str]) -> Sequence[str]:
    """The keys as page hashes of 64 lower-case hex digits.

    SGLang's are that already. Any other key (a scheme of a later version) goes in as its own SHA-256, so that
    whatever it contains makes one legal key and nothing leaves the store's root.
    """
    joined = "".join(keys)
    if set(map(len, keys)) <= {_HASH_LENGTH} and joined == joined.lower():
        try:
            if len(bytes.fromhex(joined)) * 2 == len(joined):
                return keys
        except ValueError:
            pass  # some key is not hex: they are looked at one by one
    return [key if _is_hash(key) else hashlib.sha256(b"key " + key.encode()).hexdigest() for key in keys]


def salted(hashes: Sequence[str], salt: bytes) -> list[str]:
    """Hashes of the same pages in a pool of another byte form: SHA-256(salt || hash)."""
    seeded = hashlib.sha256(salt)
    made = []
    for page_hash in hashes:
        digest = seeded.copy()
        digest.update(page_hash.encode())
        made.append(digest.hexdigest())
    return made


def _is_hash(key: str) -> bool:
    return len(key) == _HASH_LENGTH and not set(key) - set("0123456789abcdef")
