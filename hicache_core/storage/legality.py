"""Which keys the contract allows, at the price that a data path can pay: for backends."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hicache_core.types import KEY_PATTERN

_usual = re.compile(r"[0-9a-f]{32}/[0-9a-f]{64}\.[0-9a-z_]{1,40}\.[0-9a-z-]{1,40}").fullmatch
"""Matches the keys of the core; a sixth of the cost of the full rule, which any other key is held to."""
_all_plain = re.compile(r"(?:[0-9a-z_-]{1,64}/[0-9a-z_-][0-9a-z._-]{0,130}\n)*").fullmatch
"""Matches keys of two segments, one a line: nearly all that there are, and all that the core builds."""
_full = KEY_PATTERN.fullmatch


def legal_key(key: str) -> bool:
    """Whether the contract allows this key."""
    return _usual(key) is not None or _full(key) is not None


def legal_positions(keys: Sequence[str]) -> list[int]:
    """Positions of the legal keys."""
    lines = "".join([f"{key}\n" for key in keys])
    if lines.count("\n") == len(keys) and _all_plain(lines):
        return list(range(len(keys)))
    return [i for i, key in enumerate(keys) if _full(key)]


def legal_namespace(name: str) -> bool:
    """Whether this can be the first segment of a key."""
    return "/" not in name and _full(name) is not None
