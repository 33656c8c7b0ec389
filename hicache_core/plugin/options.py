"""A backend's options: parsed into its struct, described for people.

A struct may say more in class variables: `PASSTHROUGH` names a dict field that takes the options which are not the
struct's own (of `dynamic`, of wrappers); `ALIASES` maps other spellings to field names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from msgspec import inspect as info

from hicache_core.errors import OptionError, nearest
from hicache_core.plugin.redaction import is_secret, redact, redact_url, secret_fields
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


@dataclass(frozen=True, slots=True)
class OptionInfo:
    """One option for people. default is None too where the option is required; secret: never show its value."""

    name: str
    type: str
    default: Any
    help: str
    required: bool = False
    secret: bool = False


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
            if _has_unit(shape, "bytes") and value.strip().lower() not in ("null", "none"):
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


def describe_options(struct_type: type[msgspec.Struct]) -> list[OptionInfo]:
    """Every option of a struct, in order."""
    marked = secret_fields(struct_type)
    rest_field = getattr(struct_type, "PASSTHROUGH", None)
    found = []
    for field in msgspec.structs.fields(struct_type):
        shape = info.type_info(field.type)
        kind = "all other options" if field.name == rest_field else describe_type(shape)
        secret = field.name in marked or is_secret(field.name, "text")
        found.append(OptionInfo(field.name, kind, _default(field), _help(shape), field.required, secret))
    return found


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


def describe_type(shape: info.Type) -> str:
    """The type in words."""
    if isinstance(shape, info.Metadata):
        return "size" if _has_unit(shape, "bytes") else describe_type(shape.type)
    if isinstance(shape, info.UnionType):
        return " or ".join(describe_type(t) for t in shape.types)
    if isinstance(shape, info.LiteralType):
        return " | ".join(str(v) for v in shape.values)
    if isinstance(shape, info.IntType | info.FloatType):
        bounds = [f"{sign} {v:g}" for sign, v in _bounds(shape) if v is not None]
        return " ".join(["int" if isinstance(shape, info.IntType) else "number", *bounds])
    words = {"StrType": "text", "BoolType": "bool", "NoneType": "null", "AnyType": "any", "DictType": "mapping"}
    if isinstance(shape, info.ListType | info.VarTupleType):
        return f"list of {describe_type(shape.item_type)}"
    return words.get(type(shape).__name__, type(shape).__name__.removesuffix("Type").lower())


def _bounds(shape: info.IntType | info.FloatType) -> list[tuple[str, float | None]]:
    return [(">=", shape.ge), (">", shape.gt), ("<=", shape.le), ("<", shape.lt)]


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
        return msgspec.json.decode(stripped)
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


def _has_unit(shape: info.Type, unit: str) -> bool:
    if isinstance(shape, info.Metadata):
        return (shape.extra or {}).get("unit") == unit or _has_unit(shape.type, unit)
    return isinstance(shape, info.UnionType) and any(_has_unit(t, unit) for t in shape.types)


def _help(shape: info.Type) -> str:
    if isinstance(shape, info.Metadata):
        return str((shape.extra_json_schema or {}).get("description", "")) or _help(shape.type)
    return next(filter(None, map(_help, shape.types)), "") if isinstance(shape, info.UnionType) else ""


def _default(field: msgspec.structs.FieldInfo) -> Any:
    if field.default is not msgspec.NODEFAULT:
        return field.default
    return field.default_factory() if field.default_factory is not msgspec.NODEFAULT else None
