"""A backend's options in words, for tables and messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import inspect as info

from hicache_core.plugin.redaction import is_secret, secret_fields


@dataclass(frozen=True, slots=True)
class OptionInfo:
    """One option for people. default is None too where the option is required; secret: never show its value."""

    name: str
    type: str
    default: Any
    help: str
    required: bool = False
    secret: bool = False


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


def describe_type(shape: info.Type) -> str:
    """The type in words."""
    if isinstance(shape, info.Metadata):
        return "size" if has_unit(shape, "bytes") else describe_type(shape.type)
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


def has_unit(shape: info.Type, unit: str) -> bool:
    """Whether the type carries `Meta(extra={"unit": unit})`."""
    if isinstance(shape, info.Metadata):
        return (shape.extra or {}).get("unit") == unit or has_unit(shape.type, unit)
    return isinstance(shape, info.UnionType) and any(has_unit(t, unit) for t in shape.types)


def _help(shape: info.Type) -> str:
    if isinstance(shape, info.Metadata):
        return str((shape.extra_json_schema or {}).get("description", "")) or _help(shape.type)
    return next(filter(None, map(_help, shape.types)), "") if isinstance(shape, info.UnionType) else ""


def _default(field: msgspec.structs.FieldInfo) -> Any:
    if field.default is not msgspec.NODEFAULT:
        return field.default
    return field.default_factory() if field.default_factory is not msgspec.NODEFAULT else None
