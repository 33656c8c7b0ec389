"""An open connector and what drives it."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

from hicache_aibrix.errors import AibrixError, AnotherLengthError
from hicache_aibrix.region import PageRegion
from hicache_aibrix.runner import Runner, Turns
from hicache_core.storage.gate import Gate, tell_forked_child
from hicache_core.types import Outcome

T = TypeVar("T")
ALREADY_THERE = "exists"
"""Value of the status with which a connector of ours says that it kept the first."""
_NO_ROOM = ("no space left", "[errno 28]", "[errno 122]", "[errno 27]", "file too large", "quota exceeded")
"""In the texts of ENOSPC, EDQUOT, EFBIG: AIBrix hands errors on as text."""
_GONE = "[errno 2]"
"""In the text of SHFS where a page was removed between its look at the file and its opening."""
_ANOTHER_LENGTH = "size mismatch"
"""In the text with which SHFS refuses an object of another length before it asks the region."""


_CLOSE_PATIENCE_SECONDS = 1.0


class Connector(Protocol):
    """AIBrix's connector, as far as it is used, and what ours add. Every answer is a `Status`."""

    async def exists(self, key: bytes) -> Any: ...
    async def get(self, key: bytes, mr: PageRegion) -> Any: ...
    async def put(self, key: bytes, mr: PageRegion) -> Any: ...
    async def delete(self, key: bytes) -> Any: ...
    def close(self) -> Any: ...
    def leave_to_parent(self) -> None:
        """In a forked child: let go of what is open without touching what the parent has on disk."""


def block_hash(key: str) -> bytes:
    """A physical key as the hash of an AIBrix block: SHA-256 of all of it, 64 hex digits in ASCII."""
    return hashlib.sha256(key.encode()).hexdigest().encode()


class Store:
    """A connector, its threads, and the calls that are in it. Thread-safe."""

    def __init__(self, connector: Connector, runner: Runner) -> None:
        self.connector = connector
        self._runner, self._turns = runner, Turns()
        self._gate = Gate("aibrix store", self._release)
        self.abandoned = 0
        """Threads that close left behind inside a call that did not return."""
        tell_forked_child(self)

    def exists(self, keys: Sequence[str], deadline: float | None) -> list[bool]:
        """Whether each page is there. Raises AibrixError where the store did not answer."""
        answers = self._all([partial(self._exists, block_hash(key)) for key in keys], deadline)
        return [_raised(answer) for answer in answers]

    def get(self, keys: Sequence[str], regions: Sequence[PageRegion], deadline: float | None) -> list[Any]:
        """Fill each region: HIT, MISS or CORRUPT, or the exception that says why not."""
        jobs = [partial(self._get, block_hash(key), region) for key, region in zip(keys, regions, strict=True)]
        return self._all(jobs, deadline)

    def put(self, keys: Sequence[str], regions: Sequence[PageRegion], deadline: float | None) -> list[Any]:
        """Store each region: STORED, EXISTS or REJECTED, or the exception that says why not."""
        jobs = [partial(self._put, block_hash(key), region) for key, region in zip(keys, regions, strict=True)]
        return self._all(jobs, deadline)

    def remove(self, keys: Sequence[str], deadline: float | None) -> list[Any]:
        """Remove each page: HIT or MISS, or the exception that says why not."""
        return self._all([partial(self._remove, block_hash(key)) for key in keys], deadline)

    def close(self) -> None:
        """Take no more calls; this one, or else the last that is under way, lets go of everything."""
        self._gate.close(_CLOSE_PATIENCE_SECONDS)

    def leave_to_parent(self) -> None:
        """In a forked child: the store is the parent's."""
        self._gate.abandon()
        self.connector.leave_to_parent()

    def _release(self) -> None:
        self.abandoned = self._runner.close()
        if not self.abandoned:  # a database is not closed under a thread that is in it
            self.connector.close()

    def _all(self, jobs: Sequence[Callable[[], Awaitable[T]]], deadline: float | None) -> list[T | BaseException]:
        with self._gate.call():
            return self._runner.all(jobs, deadline)

    async def _exists(self, key: bytes) -> bool:
        status = await self.connector.exists(key)
        if not (status.is_ok() or status.is_not_found()):
            raise _error("exists", status)
        return bool(status.is_ok())

    async def _get(self, key: bytes, region: PageRegion) -> Outcome:
        status = await self.connector.get(key, region)
        if status.is_ok():
            return Outcome.HIT if region.filled else Outcome.CORRUPT
        if status.is_not_found() or _GONE in str(status.value).lower():
            return Outcome.MISS
        if isinstance(status.value, AnotherLengthError) or _ANOTHER_LENGTH in str(status.value):
            return Outcome.CORRUPT
        raise _error("get", status)

    async def _put(self, key: bytes, region: PageRegion) -> Outcome:
        async with self._turns.of(key):
            if not region.replace and await self._exists(key):
                return Outcome.EXISTS
            status = await self.connector.put(key, region)
        if status.is_ok():
            return Outcome.EXISTS if status.value == ALREADY_THERE else Outcome.STORED
        if any(sign in str(status.value).lower() for sign in _NO_ROOM):
            return Outcome.REJECTED
        raise _error("put", status)

    async def _remove(self, key: bytes) -> Outcome:
        async with self._turns.of(key):
            if not await self._exists(key):  # RocksDB says OK whether there was anything or not
                return Outcome.MISS
            status = await self.connector.delete(key)
        if status.is_ok():
            return Outcome.HIT
        if status.is_not_found() or _GONE in str(status.value).lower():  # another process was faster
            return Outcome.MISS
        raise _error("delete", status)


def _error(call: str, status: Any) -> AibrixError:
    return AibrixError(f"{call}: {status.error_code.name}: {status.value}")


def _raised(answer: Any) -> bool:
    if isinstance(answer, BaseException):
        raise answer
    return bool(answer)
