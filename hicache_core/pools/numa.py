"""Which NUMA node a mapping's pages come from."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
from pathlib import Path

_MBIND = {"x86_64": 237, "aarch64": 235}
_MPOL_BIND = 2
_WORD_BITS = 8 * ctypes.sizeof(ctypes.c_ulong)
_libc = ctypes.CDLL(None, use_errno=True)


def nodes(root: Path = Path("/sys/devices/system/node")) -> list[int]:
    """The machine's NUMA nodes; empty where the kernel tells of none."""
    names = [path.name[4:] for path in root.glob("node*")] if root.is_dir() else []
    return sorted(int(name) for name in names if name.isdigit())


def bind(address: int, nbytes: int, node: int) -> None:
    """Let pages of this range, not touched yet, come from `node` alone (mbind). Raises OSError where that fails."""
    number = _MBIND.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, f"mbind is not known on {platform.machine()}")
    mask = (ctypes.c_ulong * (node // _WORD_BITS + 1))()
    mask[node // _WORD_BITS] = 1 << (node % _WORD_BITS)
    bits = ctypes.c_ulong(len(mask) * _WORD_BITS + 1)
    if _libc.syscall(
        ctypes.c_long(number),
        ctypes.c_void_p(address),
        ctypes.c_size_t(nbytes),
        ctypes.c_int(_MPOL_BIND),
        mask,
        bits,
        ctypes.c_uint(0),
    ):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
