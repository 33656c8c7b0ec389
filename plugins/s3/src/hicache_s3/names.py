"""From keys to names of objects and back.

A page lies at `<namespace>/<rest of its key>`, with `/` in the rest written `+`, which no key contains: "a" and "a/b"
are then two objects side by side, also on stores that take "a/" for a directory. A key that is a namespace alone lies
at `<namespace>/+`. Keys that the core builds have one slash and are the object's name as they stand.
"""

from __future__ import annotations

from hicache_core.storage.legality import legal_key

CONTROL = "+hicache"
"""Directory of what is not a page; no namespace contains `+`."""


def name_of(key: str) -> str | None:
    """The name of a key's object; None for a key outside the rule."""
    if not legal_key(key):
        return None
    namespace, slash, rest = key.partition("/")
    return f"{namespace}/{rest.replace('/', '+') if slash else '+'}"


def key_of(name: str) -> str | None:
    """The key whose object has this name; None for one that is no page of ours."""
    namespace, slash, rest = name.partition("/")
    key = namespace if rest == "+" else f"{namespace}{slash}{rest.replace('+', '/')}"
    return key if name_of(key) == name else None
