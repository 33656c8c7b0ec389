"""What `make bench-backends` compares a sealed session with: Mooncake's client by its fastest documented calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hicache_core.errors import StorageError
from hicache_core.plugin.bare_clients import BareCase, PageMemory
from hicache_mooncake.connect import connect
from hicache_mooncake.dev_server import make_server
from hicache_mooncake.options import MooncakeOptions


class BareMooncake:
    """batch_put_from and batch_get_into, one registered buffer, one part per object."""

    def __init__(self, options: Mapping[str, Any], memory: PageMemory) -> None:
        self._client = connect(MooncakeOptions(**options))
        self._sdk = self._client.sdk
        self._base, self._page = memory.ctypes.data, int(memory.shape[1])
        code = self._sdk.register_buffer(self._base, memory.nbytes)
        if code != 0:
            self._client.close()
            raise StorageError(f"register_buffer of {memory.nbytes} bytes: {code}")

    def put(self, keys: Sequence[str], slots: Sequence[int]) -> None:
        """Store rows."""
        codes = self._sdk.batch_put_from(keys, self._addresses(slots), [self._page] * len(keys))
        if any(codes):
            raise StorageError(f"batch_put_from: {sum(map(bool, codes))} of {len(keys)} pages failed: {min(codes)}")

    def get(self, keys: Sequence[str], slots: Sequence[int]) -> None:
        """Fill rows."""
        sizes = [self._page] * len(keys)
        answers = self._sdk.batch_get_into(keys, self._addresses(slots), sizes)
        if answers != sizes:
            raise StorageError(f"batch_get_into: not every page was read whole: {min(answers)}")

    def remove(self, keys: Sequence[str]) -> None:
        """Make room."""
        self._sdk.batch_remove(keys, True)

    def close(self) -> None:
        """Unregister and leave."""
        self._sdk.unregister_buffer(self._base)
        self._client.close()

    def _addresses(self, slots: Sequence[int]) -> list[int]:
        return [self._base + slot * self._page for slot in slots]


@contextmanager
def _embedded(directory: Path, nbytes: int) -> Iterator[Mapping[str, Any]]:
    """The client's own process owns the memory."""
    with make_server(directory, owners=0, segment_bytes=_room(nbytes)) as server:
        yield server.options


@contextmanager
def _two_processes(directory: Path, nbytes: int) -> Iterator[Mapping[str, Any]]:
    """Another process owns the memory; bytes go over TCP."""
    with make_server(directory, owners=1, segment_bytes=_room(2 * nbytes)) as server:
        yield server.options


def _room(nbytes: int) -> int:
    """Well below the share at which the master begins to evict."""
    return max(512 << 20, nbytes * 3 // 2)


CASES = (
    BareCase("embedded", _embedded, BareMooncake, at_least=0.75, aim=0.85, apart=True, workers_apart=False),
    BareCase("two processes", _two_processes, BareMooncake, at_least=0.9, workers_apart=False),
)
