"""Which file holds a key, and which key a file holds. Pure; the two directions are inverse.

    key   {namespace}/{rest}      file   {namespace}/{leaf}/{rest with "/" written "+"}
    key   {namespace}             file   {namespace}/{leaf}/+

No key contains "+", so "a", "a/b" and "a/b/c" are three files. The leaf directory is six bits of the CRC-32 of the
file's name. Why 64: a new directory costs about as much as writing a page of 64 KiB, so a young store should need
few; and 64 times the seven million names at which ext4's index of one directory is full is more than a disk holds.
"""

from __future__ import annotations

import re
from zlib import crc32

from hicache_core.types import KEY_PATTERN

CONTROL = "+hicache"
"""Directory of our own records beside the namespaces; no namespace can have this name."""
LEAF_COUNT = 64
LEAVES = tuple(f"{n:02x}" for n in range(LEAF_COUNT))
"""Names of the leaf directories of a namespace, by number."""
_LEAF_NUMBERS = {name: number for number, name in enumerate(LEAVES)}
LEAF_MASK = LEAF_COUNT - 1
"""Of the CRC-32 of a file's name: the number of its leaf directory."""
"""Of a file name's CRC-32: the number of its leaf directory."""
_SLASH = "+"

plain_name = re.compile(r"[0-9a-z_-][0-9a-z._-]*").fullmatch
"""Matches the rest of nearly every key: one segment that does not start with a dot. It is the file's name."""
_any_key = KEY_PATTERN.fullmatch
_namespace = re.compile(r"[0-9a-z._-]{1,200}").fullmatch


def legal_key(key: str) -> bool:
    """Whether the contract allows this key."""
    return _any_key(key) is not None


def legal_namespace(name: str) -> bool:
    """Whether this can be the first segment of a key."""
    return name not in (".", "..") and _namespace(name) is not None


def leaf_of(name: str) -> int:
    """Number of the leaf directory of a file name."""
    return crc32(name.encode()) & LEAF_MASK


def locate(key: str) -> tuple[str, int, str]:
    """(namespace, leaf number, file name) of a legal key."""
    namespace, _, rest = key.partition("/")
    name = rest.replace("/", _SLASH) or _SLASH
    return namespace, leaf_of(name), name


def relative_path(key: str) -> str:
    """Path of a legal key's file under the root."""
    namespace, leaf, name = locate(key)
    return f"{namespace}/{LEAVES[leaf]}/{name}"


def key_of(namespace: str, leaf: str, name: str) -> str | None:
    """The key that this file holds, or None where it is not a page of ours."""
    if crc32(name.encode("utf-8", "surrogateescape")) & LEAF_MASK != _LEAF_NUMBERS.get(leaf):
        return None
    key = namespace if name == _SLASH else f"{namespace}/{name.replace(_SLASH, '/')}"
    return key if legal_key(key) else None
