"""The EIC client behind the contract: one object per page, staged in arenas."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterable, Sequence
from typing import Any

from hicache_core.errors import OpenError
from hicache_core.storage.contiguous import Arenas, RemovingBackend, Stored
from hicache_core.storage.lent_memory import address_of
from hicache_core.types import IoContext, OpenContext, Outcome
from hicache_eic.options import HEADER_BYTES, EicOptions

HEADER = struct.Struct("<8sQ")
MAGIC = b"HICEIC\0\1"
_ANOTHER_LENGTH = -1
MOST_KEYS = 1024
"""Keys that one mexist takes."""
assert HEADER.size == HEADER_BYTES


class EicError(Exception):
    """A call that EIC did not answer as a whole; the core makes it UNAVAILABLE for its pages."""


def open_eic(options: EicOptions, ctx: OpenContext) -> RemovingBackend:
    """A backend on the EIC instance that the options name. Raises OpenError with the client's code."""
    import eic

    start = eic.InitOption()
    for name, value in _init_fields(eic, options):
        setattr(start, name, value)
    connection = eic.Client()
    code = connection.init(options.instance_id, options.endpoint, start)
    if code != 0:
        raise OpenError(
            f"EIC refused instance {options.instance_id!r} at {options.endpoint!r}: init returned {code}; check "
            "endpoint and instance_id, and the client's log (log_dir)"
        )
    arenas = [memoryview(mmap.mmap(-1, options.arena_bytes)).cast("B") for _ in range(options.arenas)]
    client = EicClient(eic, connection, options)
    if options.register_cuda_id is not None:
        client.register(arenas, options.register_cuda_id)
    return RemovingBackend(client, Arenas(arenas))


def _init_fields(eic: Any, options: EicOptions) -> Iterable[tuple[str, Any]]:
    if options.log_dir is not None:
        yield "log_dir", options.log_dir
    if options.log_level is not None:
        yield "log_level", eic.LogLevel(options.log_level)
    if options.transport_type is not None:
        yield "transport_type", eic.TransportType(options.transport_type)
    if options.flag_file is not None:
        yield "flag_file", options.flag_file
    if options.local_interfaces is not None:
        yield "multi_net_local_interface_names", options.local_interfaces


class EicClient:
    """A `RemovingClient`. The vendor's client is used from several threads, as other engines use it."""

    header_bytes = HEADER_BYTES

    def __init__(self, eic: Any, connection: Any, options: EicOptions) -> None:
        self._eic, self._connection, self._options = eic, connection, options
        self._registered = False

    def register(self, arenas: Sequence[memoryview], cuda_id: int) -> None:
        """Register the staging memory. The API knows no way back; it ends with the connection."""
        info = self._eic.MemoryInfo()
        info.type, info.cuda_id = self._eic.MemoryType.MEMORY_CUDA, cuda_id
        self._registered = True
        self._connection.register_memory(self._buffers(arenas), info)

    def exists(self, keys: Sequence[str], ctx: IoContext) -> list[bool]:
        """See ContiguousClient."""
        option = self._eic.ExistOption()
        option.ns = self._options.namespace
        found = []
        for start in range(0, len(keys), MOST_KEYS):
            some = keys[start : start + MOST_KEYS]
            status, outcome = self._connection.mexist(self._strings(some), option)
            found += self._each("mexist", status, outcome, some)
        return found

    def put(self, keys: Sequence[str], objects: Sequence[memoryview], ctx: IoContext) -> list[Outcome]:
        """See ContiguousClient. A key whose status is a failure was not stored."""
        for whole in objects:
            HEADER.pack_into(whole, 0, MAGIC, whole.nbytes - HEADER_BYTES)
        option = self._eic.SetOption()
        option.ns, option.ttl_second = self._options.namespace, self._options.ttl_seconds
        status, outcome = self._connection.mset(self._strings(keys), self._buffers(objects), option)
        stored = self._each("mset", status, outcome, keys)
        return [Outcome.STORED if one else Outcome.REJECTED for one in stored]

    def get(self, keys: Sequence[str], objects: Sequence[memoryview], ctx: IoContext) -> list[Stored]:
        """See ContiguousClient. The length comes from the object's own header."""
        for whole in objects:
            whole[:HEADER_BYTES] = bytes(HEADER_BYTES)
        option = self._eic.GetOption()
        option.ns = self._options.namespace
        status, _, outcome = self._connection.mget(self._strings(keys), option, self._buffers(objects))
        found = self._each("mget", status, outcome, keys)
        return [_length(whole) if one else Outcome.MISS for one, whole in zip(found, objects, strict=True)]

    def remove(self, keys: Sequence[str], ctx: IoContext) -> list[Outcome]:
        """See ContiguousClient."""
        there = self.exists(keys, ctx)
        if any(there):
            option = self._eic.DelOption()
            option.ns = self._options.namespace
            self._connection.mdel(self._strings([k for k, one in zip(keys, there, strict=True) if one]), option)
        left = self.exists(keys, ctx)
        return [
            Outcome.UNAVAILABLE if after else Outcome.HIT if before else Outcome.MISS
            for before, after in zip(there, left, strict=True)
        ]

    def close(self) -> None:
        """See ContiguousClient: the connection ends with its last reference; the API has no call for it."""
        self._connection = None

    # parts

    def _each(self, call: str, status: Any, outcome: Any, keys: Sequence[str]) -> list[bool]:
        """One answer per key. A call that failed as a whole says nothing of its keys."""
        codes = self._eic.StatusCode
        if status == codes.SUCCESS:
            each = list(getattr(outcome, "status_codes", ())) or [codes.SUCCESS] * len(keys)
        elif status == codes.PARTIAL_FAILED:
            each = list(outcome.status_codes)
        else:
            raise EicError(f"{call} of {len(keys)} keys: status {status}")
        if len(each) != len(keys):
            raise EicError(f"{call} answered {len(each)} status codes for {len(keys)} keys")
        return [code == codes.SUCCESS for code in each]

    def _strings(self, keys: Sequence[str]) -> Any:
        vector = self._eic.StringVector()
        for key in keys:
            vector.append(key)
        return vector

    def _buffers(self, memories: Sequence[memoryview]) -> Any:
        buffers = self._eic.IOBuffers()
        for memory in memories:
            buffers.append(address_of(memory), memory.nbytes, self._registered)
        return buffers


def _length(whole: memoryview) -> int:
    magic, length = HEADER.unpack_from(whole)
    return int(length) if magic == MAGIC else _ANOTHER_LENGTH
