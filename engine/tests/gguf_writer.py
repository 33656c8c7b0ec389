"""A GGUF writer for tests: metadata, and tensors given as raw bytes of their type."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _value(value: Any) -> tuple[int, bytes]:
    if isinstance(value, bool):
        return 7, struct.pack("<?", value)
    if isinstance(value, int):
        return 4, struct.pack("<I", value)
    if isinstance(value, float):
        return 6, struct.pack("<f", value)
    if isinstance(value, str):
        return 8, _string(value)
    parts = [_value(v) for v in value]
    return 9, struct.pack("<IQ", parts[0][0], len(parts)) + b"".join(raw for _, raw in parts)


def write_gguf(
    path: Path, metadata: Mapping[str, Any], tensors: Mapping[str, tuple[Sequence[int], int, bytes]] | None = None
) -> Path:
    """tensors: name -> (shape in numpy order, GGML type, bytes)."""
    tensors = tensors or {}
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    for key, value in metadata.items():
        kind, raw = _value(value)
        head += _string(key) + struct.pack("<I", kind) + raw
    data = b""
    for name, (shape, kind, raw) in tensors.items():
        data += bytes(-len(data) % 32)
        dims = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        head += _string(name) + dims + struct.pack("<IQ", kind, len(data))
        data += raw
    path.write_bytes(head + bytes(-len(head) % 32) + data)
    return path
