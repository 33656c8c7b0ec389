"""Which keys the contract allows, for a whole batch at once."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hicache_core.types import KEY_PATTERN

_all_plain = re.compile(r"(?:[0-9a-z_-]{1,64}/[0-9a-z_-][0-9a-z._-]{0,130}\n)*").fullmatch
"""Matches keys of two segments, one a line: nearly all that there are, and all that the core builds."""
legal_key = KEY_PATTERN.fullmatch


def legal_positions(keys: Sequence[str]) -> list[int]:
    """Positions of the legal keys."""
    lines = "".join([f"{key}\n" for key in keys])
    if lines.count("\n") == len(keys) and _all_plain(lines):
        return list(range(len(keys)))
    return [i for i, key in enumerate(keys) if legal_key(key)]


def legal_namespace(name: str) -> bool:
    """Whether this can be the first segment of a key."""
    return "/" not in name and legal_key(name) is not None
