"""What client and service say to each other: POST /v1/<method>, MessagePack both ways, one tuple of arguments."""

from __future__ import annotations

from typing import Any

import msgspec

from hicache_hf3fs.counters import Totals
from hicache_hf3fs.index.interface import Found, Identity, Listed, Placed, Reservation, Slot

ARGUMENTS: dict[str, Any] = {
    "identity": tuple[()],
    "lookup": tuple[list[str]],
    "still": tuple[int, list[int], list[int]],
    "reserve": tuple[str, list[str], list[int], bool, bool],
    "hollowed": tuple[str, list[Slot]],
    "spare": tuple[str, int],
    "excess": tuple[str, int],
    "commit": tuple[str, list[Placed], list[Slot], bool],
    "delete": tuple[list[str]],
    "clear": tuple[str],
    "scan": tuple[str | None, str | None, int],
    "totals": tuple[()],
}
"""By method. The first argument of what reserves, and of what ends a reservation, is the client's own id."""

ANSWERS: dict[str, Any] = {
    "identity": Identity,
    "lookup": Found,
    "still": list[int] | None,
    "reserve": Reservation,
    "hollowed": type(None),
    "spare": list[Slot],
    "excess": list[Slot],
    "commit": list[int],
    "delete": list[bool],
    "clear": int,
    "scan": list[Listed],
    "totals": Totals,
}

MOST_BYTES = 64 << 20
"""Of a request. 100,000 keys take less."""

encode = msgspec.msgpack.Encoder().encode
argument_decoders: dict[str, msgspec.msgpack.Decoder[Any]] = {
    name: msgspec.msgpack.Decoder(type_) for name, type_ in ARGUMENTS.items()
}
answer_decoders: dict[str, msgspec.msgpack.Decoder[Any]] = {
    name: msgspec.msgpack.Decoder(type_) for name, type_ in ANSWERS.items()
}
