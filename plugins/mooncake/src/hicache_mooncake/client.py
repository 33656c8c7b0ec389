"""The SDK's object, opened: every call behind the latch, codes as they are."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hicache_core.errors import OpenError, StorageError
from hicache_mooncake.codes import NO_ANSWER, RPC_FAILED, told
from hicache_mooncake.latch import Latch
from hicache_mooncake.objects import Objects

TURN_SECONDS = 30.0
"""The longest wait for the transfer before; the session's own deadline is mostly shorter."""


class Client:
    """sdk: a MooncakeDistributedStore that was set up. policy: its ReplicateConfig. server: for errors. Thread-safe.

    Every method raises StorageError while the server does not answer; `put`, `get` and `upsert` answer with codes
    where it stopped answering during the call.

    in_turn: one transfer at a time. Over TCP two of them hinder each other: 16 MiB from another process take 25 ms
    alone and 1.5 to 2.5 s each when two calls of one client run at once (SDK 0.3.13).
    """

    def __init__(self, sdk: Any, policy: Any, latch: Latch, server: str, *, in_turn: bool = False) -> None:
        self.sdk, self._policy, self.latch, self._server = sdk, policy, latch, server
        self._turn: threading.Lock | None = threading.Lock() if in_turn else None

    def exist(self, keys: Sequence[str]) -> list[bool]:
        """One bool per key. Grants each key that is there a lease. Raises StorageError where no answer came."""
        self.latch.check()
        codes: list[int] = self.sdk.batch_is_exist(keys)
        if codes and (codes[0] < 0 or codes[-1] < 0) and all(code < 0 for code in codes):
            self._silent(codes[0])
            raise StorageError(f"{self._server} did not answer: {told(codes[0])}")
        self.latch.answered()
        return [code == 1 for code in codes]  # a code below 0 is true, and no 1

    def put(self, keys: Sequence[str], objects: Objects) -> list[int]:
        """0 (stored, or there already: it does not say which) or a code per key."""
        self.latch.check()
        with self._transfer():
            codes: list[int] = self.sdk.batch_put_from_multi_buffers(keys, objects.ptrs, objects.sizes, self._policy)
        return self._heard(codes)

    def get(self, keys: Sequence[str], objects: Objects) -> list[int]:
        """Bytes read, or a code, per key. Grants leases."""
        self.latch.check()
        with self._transfer():
            codes: list[int] = self.sdk.batch_get_into_multi_buffers(keys, objects.ptrs, objects.sizes)
        return self._heard(codes)

    def upsert(self, key: str, parts: Sequence[memoryview]) -> int:
        """Store over whatever is there; through the SDK's local buffer."""
        self.latch.check()
        code: int = self.sdk.upsert_parts(key, *parts, config=self._policy)
        return self._heard([code])[0]

    def size(self, key: str) -> int:
        """Bytes stored under the key, or a code."""
        self.latch.check()
        answer: int = self.sdk.get_size(key)
        return self._heard([answer])[0]

    def remove(self, keys: Sequence[str]) -> list[int]:
        """0 or a code per key. By force: a lease (which exists and get grant) does not keep a key."""
        self.latch.check()
        codes: list[int] = self.sdk.batch_remove(keys, True)
        return self._heard(codes)

    def remove_matching(self, pattern: str) -> int:
        """How many keys matched and are gone. Raises StorageError where the master refuses or does not answer."""
        self.latch.check()
        count: int = self.sdk.remove_by_regex(pattern, True)
        self._heard([count])
        if count < 0:
            raise StorageError(f"{self._server} did not remove keys: {told(count)}")
        return count

    def register(self, start: int, nbytes: int) -> int:
        """0 or a code."""
        code: int = self.sdk.register_buffer(start, nbytes)
        return code

    def unregister(self, start: int) -> None:
        """A server that is gone has forgotten the memory already, so the code is of no interest."""
        self.sdk.unregister_buffer(start)

    def allocate(self, nbytes: int) -> int:
        """Standalone: address of memory shared with the client process. Raises OpenError where it has none."""
        self.latch.check()
        start: int = self.sdk.alloc_from_mem_pool(nbytes)
        if not start:
            raise OpenError(f"{self._server} has no {nbytes:,} bytes of shared memory left; make the pool smaller")
        return start

    def close(self) -> None:
        """End its threads, unmount its segment. Takes a second or two."""
        self.sdk.close()

    def abandon(self) -> None:
        """In a forked child: the threads that its destructor would wait for do not exist here, so it never runs."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.sdk))

    @contextmanager
    def _transfer(self) -> Iterator[None]:
        """Held during a transfer. Raises StorageError where the one before does not end."""
        if self._turn is None:
            yield
            return
        if not self._turn.acquire(timeout=TURN_SECONDS):
            raise StorageError(f"{self._server}: the transfer before this one has not ended in {TURN_SECONDS:g} s")
        try:
            yield
        finally:
            self._turn.release()

    def _heard(self, codes: list[int]) -> list[int]:
        if codes and codes[0] in NO_ANSWER and all(code in NO_ANSWER for code in codes):
            self._silent(codes[0])
        else:
            self.latch.answered()
        return codes

    def _silent(self, code: int) -> None:
        if code == RPC_FAILED or code in NO_ANSWER or code == -1:
            self.latch.silent(f"{self._server} does not answer ({told(code)})")
