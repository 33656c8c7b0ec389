"""A backend's options: parsed into its struct, described for people.

A struct may say more in class variables: `PASSTHROUGH` names a dict field that takes the options which are not the
struct's own (of `dynamic`, of wrappers); `ALIASES` maps other spellings to field names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import inspect as info

from hicache_core.errors import OptionError, nearest
from hicache_core.jsontext import decode_json
from hicache_core.plugin.descriptions import OptionInfo, describe_options, describe_type, has_unit
from hicache_core.plugin.redaction import redact, redact_url
from hicache_core.plugin.sizes import ByteSize, format_size, parse_size

__all__ = [
    "ByteSize",
    "OptionInfo",
    "convert_value",
    "describe_options",
    "format_size",
    "parse_options",
    "parse_size",
    "redact",
    "redact_url",
    "split_assignments",
]

S = TypeVar("S", bound=msgspec.Struct)


def parse_options(
    struct_type: type[S], mapping: Mapping[str, Any], *, where: str = "options", strict: bool = True
) -> S:
    """The options as a struct, with defaults filled in.

    strict=False also takes text for every type ("1", "true", "null", "a,b", JSON), as it comes from a command
    line or a URL. Sizes (`ByteSize`) take text in both. Raises OptionError, which names `where`, the option, the
    nearest one and the good ones.
    """
    fields = {field.name: field for field in msgspec.structs.fields(struct_type)}
    rest_field: str | None = getattr(struct_type, "PASSTHROUGH", None)
    known = [name for name in fields if name != rest_field]
    values: dict[str, Any] = {}
    rest: dict[str, Any] = {}
    for given, value in mapping.items():
        name = _field_name(struct_type, str(given), known)
        if name is not None and name in values:
            raise OptionError(f"{where}: option {name!r} is given twice")
        if name is not None:
            values[name] = convert_value(fields[name].type, value, f"{where}: option {name!r}", strict=strict)
        elif rest_field is None:
            raise OptionError(_unknown(where, str(given), known))
        elif given == rest_field and isinstance(value, Mapping):
            rest.update(value)
        else:
            rest[str(given)] = value
    if rest_field is not None:
        values[rest_field] = rest
    missing = [f.name for f in fields.values() if f.required and f.name not in values]
    if missing:
        raise OptionError(f"{where}: option {missing[0]!r} is required. Options: {_listed(known)}.")
    try:
        return struct_type(**values)
    except (ValueError, TypeError) as error:
        raise OptionError(f"{where}: {error}") from error


def convert_value(type_: Any, value: Any, where: str, *, strict: bool = True) -> Any:
    """One value as `type_`. Raises OptionError that begins with `where` and says what was expected."""
    shape = info.type_info(type_)
    try:
        if isinstance(value, str):
            if has_unit(shape, "bytes") and value.strip().lower() not in ("null", "none"):
                value = parse_size(value)
            elif not strict:
                value = _from_text(shape, value)
        return msgspec.convert(value, type_, strict=strict)
    except msgspec.DecodeError as error:
        choices = _choices(shape)
        if choices and isinstance(value, str):
            near = nearest(value, choices)
            hint = f"; did you mean {near!r}?" if near else ""
            raise OptionError(f"{where}: {value!r} is none of {', '.join(choices)}{hint}") from error
        message = str(error).replace("`", "")
        raise OptionError(f"{where}: {message[:1].lower()}{message[1:]} ({describe_type(shape)})") from error
    except ValueError as error:
        raise OptionError(f"{where}: {error}") from error


def split_assignments(assignments: Iterable[str], *, where: str = "-o") -> dict[str, str]:
    """`["root=/x", "sync=full"]` as a dict. Raises OptionError for one without `=` or given twice."""
    options: dict[str, str] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        name = name.strip()
        if not equals or not name:
            raise OptionError(f"{where}: {assignment!r} is not of the form NAME=VALUE")
        if name in options:
            raise OptionError(f"{where}: option {name!r} is given twice")
        options[name] = value
    return options


def _field_name(struct_type: type[msgspec.Struct], given: str, known: list[str]) -> str | None:
    name = given.replace("-", "_")
    name = getattr(struct_type, "ALIASES", {}).get(name, name)
    return name if name in known else None


def _unknown(where: str, given: str, known: list[str]) -> str:
    near = nearest(given.replace("-", "_"), known)
    hint = f"; did you mean {near!r}?" if near else "."
    return f"{where}: unknown option {given!r}{hint} Options: {_listed(known)}."


def _listed(names: list[str]) -> str:
    return ", ".join(names) or "none"


def _from_text(shape: info.Type, text: str) -> Any:
    """Text of a command line as msgspec's lax conversion wants it."""
    kinds = _plain_types(shape)
    if any(isinstance(k, info.NoneType) for k in kinds) and text.strip().lower() in ("none", "null"):
        return None
    if any(isinstance(k, info.StrType) for k in kinds):
        return text
    stripped = text.strip()
    if any(isinstance(k, info.BoolType) for k in kinds):
        return {"yes": "true", "on": "true", "no": "false", "off": "false"}.get(stripped.lower(), stripped)
    if stripped[:1] in "[{" and stripped:
        return decode_json(stripped)
    if any(isinstance(k, info.CollectionType) for k in kinds):
        return [item.strip() for item in text.split(",")] if stripped else []
    return stripped


def _plain_types(shape: info.Type) -> list[info.Type]:
    if isinstance(shape, info.Metadata):
        return _plain_types(shape.type)
    if isinstance(shape, info.UnionType):
        return [t for member in shape.types for t in _plain_types(member)]
    return [shape]


def _choices(shape: info.Type) -> list[str]:
    return [str(v) for t in _plain_types(shape) if isinstance(t, info.LiteralType) for v in t.values]
