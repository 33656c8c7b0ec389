"""Reading a GGUF file: its metadata, and its tensors as float32.

The format (version 3, little endian) is described at https://github.com/ggml-org/ggml/blob/master/docs/gguf.md:
magic, version, counts, key-value pairs, tensor directory, then the tensor data, each tensor aligned. The package
`gguf` reads the same files; it takes about six seconds for a 98 MB model where this takes under one, and every
process of the demo pays for it. The tests compare the two.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from .errors import ModelFileError

Bytes: TypeAlias = npt.NDArray[np.uint8]
Floats: TypeAlias = npt.NDArray[np.float32]

_SLICE = 4096

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies. `shape` is in numpy order (rows first)."""

    name: str
    shape: tuple[int, ...]
    type_id: int
    offset: int
    """From the start of the file, in bytes."""


class GGUFFile:
    """A GGUF file, mapped. Use as a context manager; arrays that `tensor` returns are copies and outlive it.

    Raises ModelFileError where the file is not GGUF version 2 or 3, or is cut short.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        with self.path.open("rb") as file:
            try:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except ValueError as error:
                raise ModelFileError(f"{self.path} is empty, not a GGUF file") from error
        self._at = 0
        try:
            self.metadata, self.tensors = self._read_header()
        except (struct.error, IndexError, UnicodeDecodeError) as error:
            self._map.close()
            raise ModelFileError(f"{self.path}: GGUF header cut short or damaged: {error}") from error
        except ModelFileError:
            self._map.close()
            raise

    def __enter__(self) -> GGUFFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._map.close()

    def tensor(self, name: str) -> Floats:
        """The tensor as float32[shape]. Raises ModelFileError where it is absent or its type is not supported."""
        info = self.tensors.get(name)
        if info is None:
            raise ModelFileError(f"{self.path} has no tensor {name!r}")
        kind = _KINDS.get(info.type_id)
        if kind is None:
            known = ", ".join(k.name for k in _KINDS.values())
            raise ModelFileError(
                f"{self.path}: tensor {name!r} has GGML type {info.type_id}, not read here (read are: {known})"
            )
        count = int(np.prod(info.shape, dtype=np.int64))
        nbytes = count // kind.block * kind.nbytes
        if info.offset + nbytes > len(self._map):
            raise ModelFileError(f"{self.path}: tensor {name!r} ends beyond the end of the file (cut short?)")
        raw = np.frombuffer(self._map, np.uint8, nbytes, info.offset).reshape(-1, kind.nbytes)
        out = np.empty((len(raw), kind.block), np.float32)
        for at in range(0, len(raw), _SLICE):  # pieces that stay in the processor's cache
            kind.decode(raw[at : at + _SLICE], out[at : at + _SLICE])
        return out.reshape(info.shape)

    def _read_header(self) -> tuple[dict[str, Any], dict[str, TensorInfo]]:
        if self._map[:4] != b"GGUF":
            raise ModelFileError(f"{self.path} is not a GGUF file (it begins with {self._map[:4]!r})")
        self._at = 4
        version = self._scalar("I")
        if version not in (2, 3):
            raise ModelFileError(f"{self.path}: GGUF version {version}; 2 and 3 are read here")
        tensor_count, pair_count = self._scalar("Q"), self._scalar("Q")
        metadata: dict[str, Any] = {}
        for _ in range(pair_count):
            key = self._string()
            metadata[key] = self._value(self._scalar("I"))
        found = [self._tensor_info() for _ in range(tensor_count)]
        alignment = int(metadata.get("general.alignment", 32))
        base = -(-self._at // alignment) * alignment
        tensors = {i.name: TensorInfo(i.name, i.shape, i.type_id, base + i.offset) for i in found}
        return metadata, tensors

    def _tensor_info(self) -> TensorInfo:
        name = self._string()
        dims = [self._scalar("Q") for _ in range(self._scalar("I"))]
        type_id, offset = self._scalar("I"), self._scalar("Q")
        return TensorInfo(name, tuple(reversed(dims)), type_id, offset)

    def _scalar(self, code: str) -> Any:
        (value,) = struct.unpack_from("<" + code, self._map, self._at)
        self._at += struct.calcsize("<" + code)
        return value

    def _string(self) -> str:
        length = self._scalar("Q")
        start, self._at = self._at, self._at + length
        if self._at > len(self._map):
            raise IndexError(f"a string of {length} bytes at {start}")
        return self._map[start : self._at].decode("utf-8")

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            return self._scalar(_SCALARS[kind]) if kind in _SCALARS else self._unknown(kind)
        element, count = self._scalar("I"), self._scalar("Q")
        if element in _SCALARS:
            code = f"<{count}{_SCALARS[element]}"
            values = struct.unpack_from(code, self._map, self._at)
            self._at += struct.calcsize(code)
            return list(values)
        return [self._value(element) for _ in range(count)]

    def _unknown(self, kind: int) -> Any:
        raise ModelFileError(f"{self.path}: unknown GGUF value type {kind}")


@dataclass(frozen=True, slots=True)
class _Kind:
    name: str
    block: int
    """Values in one block."""
    nbytes: int
    """Bytes of one block."""
    decode: Callable[[Bytes, Floats], None]
    """(blocks uint8[n, nbytes], out float32[n, block])"""


def _f32(raw: Bytes, out: Floats) -> None:
    out[...] = raw.view("<f4")


def _f16(raw: Bytes, out: Floats) -> None:
    out[...] = raw.view("<f2")


def _q4_1(raw: Bytes, out: Floats) -> None:
    """32 values: fp16 scale, fp16 minimum, then the low nibbles of 16 bytes, then the high ones."""
    scale, minimum = (raw[:, at : at + 2].copy().view("<f2").astype(np.float32) for at in (0, 2))
    out[:, :16] = raw[:, 4:] & 15
    out[:, 16:] = raw[:, 4:] >> 4
    out *= scale
    out += minimum


def _q8_0(raw: Bytes, out: Floats) -> None:
    """32 values: fp16 scale, then 32 signed bytes."""
    np.multiply(raw[:, 2:].view(np.int8), raw[:, :2].copy().view("<f2").astype(np.float32), out=out)


_KINDS = {
    0: _Kind("F32", 1, 4, _f32),
    1: _Kind("F16", 1, 2, _f16),
    3: _Kind("Q4_1", 32, 20, _q4_1),
    8: _Kind("Q8_0", 32, 34, _q8_0),
}
