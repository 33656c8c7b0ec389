"""Secrets never leave the process by way of a message, a table or a report."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, unquote_plus, urlsplit

import msgspec

HIDDEN = "***"
_SHORTEST = 4
"""Characters of a secret from which on it is looked for in other texts; a shorter one is in every second word."""
_ALWAYS = frozenset(
    {"secret", "secrets", "password", "passwd", "passphrase", "pwd", "credential", "credentials", "pin"}
)
_TEXT_ONLY = frozenset(
    {"token", "key", "auth", "authorization", "signature", "sig", "sas", "apikey", "cookie", "bearer"}
)
"""Words that also name harmless numbers (`timeout_per_ki_token`, `key_count`): hidden where the value is text."""


def redact(options: msgspec.Struct | Mapping[str, Any]) -> dict[str, Any]:
    """A copy that may be shown: values of secret options are `***`, also in nested mappings and in URLs.

    Secret is what its name says (secret, password, token, key, …) and every field of a struct whose type carries
    `msgspec.Meta(extra={"secret": True})`.
    """
    if isinstance(options, msgspec.Struct):
        marked = secret_fields(type(options))
        options = {name: getattr(options, name) for name in options.__struct_fields__}
    else:
        marked = frozenset()
    return {
        name: HIDDEN if name in marked and value is not None else _shown(name, value)
        for name, value in options.items()
    }


def hider(options: msgspec.Struct | Mapping[str, Any]) -> Callable[[str], str]:
    """A function that puts `***` for every secret value of these options that stands in a text.

    For words that are not ours: a store's exception may well repeat the password that it was given.
    """
    found = {value for value in _secret_values(options) if len(value) >= _SHORTEST}
    values = sorted(found | {quote(value, safe="") for value in found}, key=len, reverse=True)

    def hide(text: str) -> str:
        for value in values:
            text = text.replace(value, HIDDEN)
        return text

    return hide


def redact_url(url: str) -> str:
    """The URL with its password and secret query values hidden."""
    try:
        parts = urlsplit(url)
        userinfo, at, host = parts.netloc.rpartition("@")
    except ValueError:
        return HIDDEN  # what cannot be taken apart is not shown
    if at:
        userinfo = userinfo.partition(":")[0] + f":{HIDDEN}" if ":" in userinfo else userinfo
    text = "&".join(map(_shown_field, parts.query.split("&"))) if parts.query else ""
    tail = (f"?{text}" if text else "") + (f"#{parts.fragment}" if parts.fragment else "")
    return f"{parts.scheme}://{userinfo}{at}{host}{parts.path}{tail}"


def _shown_field(field: str) -> str:
    """One field of a query. What has no name may be anything, so it is not shown."""
    name, equals, value = field.partition("=")
    if not equals:
        return HIDDEN if field else ""
    name, value = unquote_plus(name), _shown(unquote_plus(name), unquote_plus(value))
    return f"{quote(name)}={value if value == HIDDEN else quote(value, safe='/:@*')}"


def is_secret(name: str, value: object = "") -> bool:
    """Whether an option of this name must not be shown with this value."""
    words = set(re.split(r"[^a-z0-9]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()))
    if words & _ALWAYS:
        return value is not None
    return bool(words & _TEXT_ONLY) and isinstance(value, str | bytes) and bool(value)


def secret_fields(struct_type: type[msgspec.Struct]) -> frozenset[str]:
    """Names of the fields that are marked secret by their type."""
    return frozenset(
        f.name for f in msgspec.structs.fields(struct_type) if _marked(msgspec.inspect.type_info(f.type))
    )


def _marked(info: Any) -> bool:
    if isinstance(info, msgspec.inspect.Metadata):
        return bool((info.extra or {}).get("secret")) or _marked(info.type)
    if isinstance(info, msgspec.inspect.UnionType):
        return any(map(_marked, info.types))
    return False


def _secret_values(options: msgspec.Struct | Mapping[str, Any]) -> Iterator[str]:
    marked: frozenset[str] = frozenset()
    if isinstance(options, msgspec.Struct):
        marked = secret_fields(type(options))
        options = {name: getattr(options, name) for name in options.__struct_fields__}
    for name, value in options.items():
        for item in value if isinstance(value, list | tuple) else (value,):
            if isinstance(item, msgspec.Struct | Mapping):
                yield from _secret_values(item)
            elif name in marked or is_secret(name, item):
                yield item.decode(errors="replace") if isinstance(item, bytes) else str(item)
            elif isinstance(item, str) and "://" in item:
                yield from _secrets_of_url(item)


def _secrets_of_url(url: str) -> Iterator[str]:
    try:
        parts = urlsplit(url)
    except ValueError:
        return
    password = parts.netloc.rpartition("@")[0].partition(":")[2]
    yield from (password, unquote(password))
    yield from (value for name, value in parse_qsl(parts.query) if is_secret(name, value))


def _shown(name: str, value: Any) -> Any:
    if is_secret(name, value):
        return HIDDEN
    if isinstance(value, msgspec.Struct | Mapping):
        return redact(value)
    if isinstance(value, list | tuple):
        return [_shown(name, item) for item in value]
    if isinstance(value, str) and "://" in value:
        return redact_url(value)
    return value
