"""The SiMM client behind the contract: one object per page, staged in registered arenas."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from hicache_core.errors import OpenError
from hicache_core.storage.contiguous import Arenas, RemovingBackend, Stored
from hicache_core.storage.lent_memory import address_of
from hicache_core.types import IoContext, OpenContext, Outcome
from hicache_simm.options import SimmOptions

ATTEMPTS = 4
"""Reads of a key that is there and cannot be read: it may have been put or removed in between."""


def open_simm(options: SimmOptions, ctx: OpenContext) -> RemovingBackend:
    """A backend on the SiMM cluster that the options name. Raises OpenError with the client's words."""
    import torch
    from simm import kv

    host, _, port = options.manager_address.rpartition(":")
    if options.net_devices is not None:
        os.environ["SICL_NET_DEVICES"] = options.net_devices
    kv.set_flag("cm_primary_node_ip", host)
    kv.set_flag("cm_primary_node_port", port)
    kv.set_flag("clnt_thread_pool_size", str(options.client_threads))
    if options.log_file is not None:
        kv.set_flag("clnt_log_file", options.log_file)
    try:
        store = kv.Store()
    except Exception as error:
        raise OpenError(
            f"SiMM's manager at {options.manager_address} was not reached: {error}; check manager_address, and that "
            "this machine has the RDMA device that SiMM needs (net_devices)"
        ) from error
    memories = [memoryview(mmap.mmap(-1, options.arena_bytes)).cast("B") for _ in range(options.arenas)]
    tensors = [torch.from_numpy(np.frombuffer(memory, np.uint8)) for memory in memories]
    client = SimmClient(
        kv, store, [(address_of(m), m.nbytes, kv.register_mr(t)) for m, t in zip(memories, tensors, strict=True)]
    )
    return RemovingBackend(client, Arenas(memories))


class SimmClient:
    """A `RemovingClient`. registered: (address, bytes, the client's handle) of each arena."""

    header_bytes = 0

    def __init__(self, kv: Any, store: Any, registered: list[tuple[int, int, Any]]) -> None:
        self._kv, self._store, self._registered = kv, store, registered

    def exists(self, keys: Sequence[str], ctx: IoContext) -> list[bool]:
        """See ContiguousClient."""
        return [bool(there) for there in self._store.mexists(list(keys))] if keys else []

    def put(self, keys: Sequence[str], objects: Sequence[memoryview], ctx: IoContext) -> list[Outcome]:
        """See ContiguousClient. The client tells an error by a number, not which: the page was refused."""
        errors = self._store.mput(list(keys), self._views(objects))
        return [Outcome.STORED if error == 0 else Outcome.REJECTED for error in errors]

    def get(self, keys: Sequence[str], objects: Sequence[memoryview], ctx: IoContext) -> list[Stored]:
        """See ContiguousClient. What fails again and again although it is there is no miss."""
        answers: list[Stored] = [Outcome.UNAVAILABLE] * len(keys)
        left = list(range(len(keys)))
        for _ in range(ATTEMPTS):
            lengths = self._store.mget([keys[index] for index in left], self._views([objects[i] for i in left]))
            for index, length in zip(left, lengths, strict=True):
                answers[index] = int(length) if length >= 0 else Outcome.MISS
            failed = [index for index, length in zip(left, lengths, strict=True) if length < 0]
            there = self.exists([keys[index] for index in failed], ctx)
            left = [index for index, one in zip(failed, there, strict=True) if one]
            if not left:
                return answers
        for index in left:
            answers[index] = Outcome.UNAVAILABLE
        return answers

    def remove(self, keys: Sequence[str], ctx: IoContext) -> list[Outcome]:
        """See ContiguousClient."""
        outcomes = []
        for key, there in zip(keys, self.exists(keys, ctx), strict=True):
            gone = there and self._store.delete(key) == 0
            outcomes.append(
                Outcome.HIT if gone else Outcome.UNAVAILABLE if there and self._store.exists(key) else Outcome.MISS
            )
        return outcomes

    def close(self) -> None:
        """See ContiguousClient. The API has no call that ends a store; it ends with its last reference."""
        for _, _, handle in self._registered:
            self._kv.deregister_mr(handle)
        self._registered = []
        self._store = None

    def _views(self, objects: Sequence[memoryview]) -> list[Any]:
        views = []
        for memory in objects:
            address = address_of(memory)
            handle = next(h for start, nbytes, h in self._registered if start <= address < start + nbytes)
            views.append(self._kv.BlockView.from_buffer(address, memory.nbytes, handle))
        return views
