"""Which weights computed a page: the identity says how it was made.

`declared:NAME`  someone's word for it.
`sampled:HEX`    config, headers, file sizes, and first, middle and last 4 KiB of every tensor: well under a second.
`full:HEX`       every byte.
Two checkpoints served under one name differ in all but the first; moving the files to another folder changes none.
"""

from __future__ import annotations

import hashlib
import mmap
from pathlib import Path
from typing import Any

from hicache_core.errors import ConfigError
from hicache_core.weight_files import read_header

SAMPLE_BYTES = 4096
_CHUNK = 1 << 20
_DIGITS = 32
_SUFFIXES = (".safetensors", ".gguf")


def declared(name: str) -> str:
    """`declared:NAME`. Raises ConfigError for an empty name."""
    if not name.strip():
        raise ConfigError("the name of the declared weights is empty")
    return f"declared:{name}"


def sampled(path: str | Path) -> str:
    """`sampled:HEX` of a weights file, or of a folder of them with its config.json.

    Raises ConfigError where the path does not exist, holds no weights, or holds a damaged header.
    """
    return "sampled:" + _identity(Path(path), "sampled")


def full(path: str | Path) -> str:
    """`full:HEX` of the same files, every byte read."""
    return "full:" + _identity(Path(path), "full")


def _identity(path: Path, how: str) -> str:
    digest = hashlib.sha256(b"hicache-weights-1 " + how.encode())
    for name, file in _files(path):
        size = file.stat().st_size
        for part in (name.encode(), size.to_bytes(8, "little")):
            digest.update(len(part).to_bytes(8, "little") + part)
        if how == "full" or file.suffix not in _SUFFIXES:
            _update_whole(digest, file)
        else:
            _update_sampled(digest, file)
    return digest.hexdigest()[:_DIGITS]


def _files(path: Path) -> list[tuple[str, Path]]:
    """(name in the identity, file): the config first, then the weights by name. A lone file has no name."""
    if not path.exists():
        raise ConfigError(f"no weights at {path}: it does not exist")
    if path.is_file():
        weights, config = [("", path)], path.parent / "config.json"
        if path.suffix == ".gguf":  # carries its config in its header
            return weights
    else:
        found = next(filter(None, (sorted(path.glob(f"*{suffix}")) for suffix in _SUFFIXES)), [])
        weights, config = [(file.name, file) for file in found], path / "config.json"
    if not weights:
        raise ConfigError(f"no weights in {path}: neither *.safetensors nor *.gguf (declared:NAME needs no files)")
    return ([("config.json", config)] if config.is_file() else []) + weights


def _update_whole(digest: Any, file: Path) -> None:
    buffer = bytearray(_CHUNK)
    with file.open("rb", buffering=0) as source:
        while count := source.readinto(buffer):
            digest.update(memoryview(buffer)[:count])


def _update_sampled(digest: Any, file: Path) -> None:
    if not file.stat().st_size:
        raise ConfigError(f"{file} is empty")
    with file.open("rb") as source, mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ) as data:
        header = read_header(file, data)
        digest.update(header.nbytes.to_bytes(8, "little"))
        digest.update(data[: header.nbytes])
        for offset, nbytes in header.tensors:
            digest.update(nbytes.to_bytes(8, "little"))
            for start, end in _samples(nbytes):
                digest.update(data[offset + start : offset + end])


def _samples(nbytes: int) -> list[tuple[int, int]]:
    """First, middle and last SAMPLE_BYTES of a tensor; all of a small one."""
    if nbytes <= 3 * SAMPLE_BYTES:
        return [(0, nbytes)]
    middle = (nbytes - SAMPLE_BYTES) // 2
    return [(start, start + SAMPLE_BYTES) for start in (0, middle, nbytes - SAMPLE_BYTES)]
