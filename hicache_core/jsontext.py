"""JSON that others wrote: however it is broken, it is one kind of error."""

from __future__ import annotations

from typing import Any

import msgspec

TOO_DEEP = "brackets are nested too deeply"


def decode_json(data: Any, shape: Any = Any) -> Any:
    """`data` (bytes, text, or any buffer) as a value of the type `shape`.

    Raises msgspec.ValidationError where it has another shape, msgspec.DecodeError, its base, where it is no JSON or
    nested deeper than Python recurses: a short file of brackets must not end in a traceback.
    """
    try:
        return msgspec.json.decode(data, type=shape)
    except RecursionError:
        raise msgspec.DecodeError(TOO_DEEP) from None
