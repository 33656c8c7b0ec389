"""Traces: one JSON object per line, as published with Mooncake (FAST'25).

`{"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [id, …]}`: one id per block of the
prompt; equal ids are equal blocks with equal prefixes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from hicache_core.errors import ConfigError
from hicache_core.jsontext import decode_json

HashId = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]


class TraceError(ConfigError):
    """A trace that cannot be read: names the file, the line and what is wrong with it."""


class TraceRequest(msgspec.Struct):
    """One line of a trace; fields it does not name are ignored."""

    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[HashId]


def read_trace(path: Path, limit: int | None = None) -> list[TraceRequest]:
    """The first `limit` requests of a trace (default: all), checked whole before any of them runs.

    Empty lines are skipped. Raises TraceError.
    """
    requests: list[TraceRequest] = []
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if limit is not None and len(requests) >= limit:
                    break
                if line.strip():
                    requests.append(_parse(line, f"{path}:{number}"))
    except OSError as error:
        raise TraceError(f"cannot read the trace {path}: {error.strerror or error}") from error
    if not requests:
        raise TraceError(f"the trace {path} holds no request. A line is an object with {_FIELDS}.")
    return requests


def _parse(line: bytes, where: str) -> TraceRequest:
    try:
        request: TraceRequest = decode_json(line, TraceRequest)
        return request
    except msgspec.ValidationError as error:
        raise TraceError(f"{where}: {error}. A line is an object with {_FIELDS}.") from error
    except msgspec.DecodeError as error:
        shown = line.strip()[:60].decode(errors="replace")
        raise TraceError(f"{where}: not JSON ({error}): {shown!r}. A line is an object with {_FIELDS}.") from error


_FIELDS = "timestamp, input_length, output_length and hash_ids (integers from 0 to 2**32 - 1)"
