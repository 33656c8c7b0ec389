"""Where the tensors lie in a weights file: headers of safetensors and GGUF, read without their libraries."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from hicache_core.errors import ConfigError
from hicache_core.jsontext import decode_json

_GGUF_MAGIC = b"GGUF"
_GGUF_VERSIONS = (2, 3)
_GGUF_STRING, _GGUF_ARRAY = 8, 9
_GGUF_WIDTHS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of a GGUF metadata value by its type number (ggml-org/ggml, docs/gguf.md)."""
_GGUF_ALIGNMENT = 32


@dataclass(frozen=True, slots=True)
class WeightsHeader:
    """A file's header: its length in bytes from the start, and (offset, bytes) of every tensor, by offset.

    In GGUF a tensor's span reaches to the next tensor, so it may hold padding.
    """

    nbytes: int
    tensors: tuple[tuple[int, int], ...]


def read_header(path: Path, data: mmap.mmap) -> WeightsHeader:
    """The header of a mapped `.safetensors` or `.gguf` file. Raises ConfigError where it cannot be one."""
    reader: Callable[[mmap.mmap], WeightsHeader] = _gguf if data[:4] == _GGUF_MAGIC else _safetensors
    try:
        header = reader(data)
    except (struct.error, msgspec.DecodeError, KeyError, ValueError, TypeError) as error:
        raise ConfigError(f"{path} is neither a sound safetensors nor a sound GGUF file: {error}") from error
    for offset, nbytes in header.tensors:
        if offset < header.nbytes or nbytes < 0 or offset + nbytes > len(data):
            raise ConfigError(f"{path} is truncated or damaged: a tensor at {offset} + {nbytes} of {len(data)} bytes")
    return header


def _safetensors(data: mmap.mmap) -> WeightsHeader:
    (length,) = struct.unpack_from("<Q", data, 0)
    if length > len(data) - 8:
        raise ValueError(f"the header should have {length} bytes, the file has {len(data)}")
    entries = decode_json(data[8 : 8 + length], dict[str, dict[str, object]])
    start = 8 + length
    spans = []
    for name, entry in entries.items():
        if name != "__metadata__":
            begin, end = msgspec.convert(entry["data_offsets"], tuple[int, int])
            spans.append((start + begin, end - begin))
    return WeightsHeader(start, tuple(sorted(spans)))


def _gguf(data: mmap.mmap) -> WeightsHeader:
    version, tensors, pairs = struct.unpack_from("<IQQ", data, 4)
    if version not in _GGUF_VERSIONS:
        raise ValueError(f"GGUF version {version}; known: 2, 3")
    at, alignment = 24, _GGUF_ALIGNMENT
    for _ in range(pairs):
        key, at = _gguf_string(data, at)
        (kind,) = struct.unpack_from("<I", data, at)
        if key == b"general.alignment":
            (alignment,) = struct.unpack_from("<I", data, at + 4)
        at = _gguf_skip(data, at + 4, kind)
    offsets = []
    for _ in range(tensors):
        _, at = _gguf_string(data, at)
        (dimensions,) = struct.unpack_from("<I", data, at)
        at += 4 + 8 * dimensions + 4
        offsets.append(struct.unpack_from("<Q", data, at)[0])
        at += 8
    start = -(-at // alignment) * alignment
    ends = [*sorted(offsets)[1:], len(data) - start]
    spans = tuple((start + begin, end - begin) for begin, end in zip(sorted(offsets), ends, strict=False))
    return WeightsHeader(at, spans)


def _gguf_string(data: mmap.mmap, at: int) -> tuple[bytes, int]:
    (length,) = struct.unpack_from("<Q", data, at)
    end = at + 8 + length
    if end > len(data):
        raise ValueError(f"a text of {length} bytes at {at} reaches beyond the file")
    return data[at + 8 : end], end


def _gguf_skip(data: mmap.mmap, at: int, kind: int) -> int:
    """Where the metadata value that begins at `at` ends."""
    if kind == _GGUF_STRING:
        return _gguf_string(data, at)[1]
    if kind != _GGUF_ARRAY:
        return at + _GGUF_WIDTHS[kind]
    inner, count = struct.unpack_from("<IQ", data, at)
    at += 12
    if inner in _GGUF_WIDTHS:
        return at + int(count) * _GGUF_WIDTHS[inner]
    for _ in range(count):
        at = _gguf_skip(data, at, inner)
    return at
