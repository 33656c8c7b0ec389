"""A store as an operator sees it: objects under keys of any namespace, opened without an identity.

The backend object is called directly, beneath session and guard: these tools must see damaged pages, and must
not poison or heal them. One thread, no deadline: the operator can interrupt.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from hicache_core.errors import HiCacheError, NotSupportedError, StorageError, told
from hicache_core.plugin.redaction import hider
from hicache_core.plugin.select import BackendChoice, open_backend
from hicache_core.storage.answers import checked_outcomes, checked_scan
from hicache_core.storage.binding import HookBinding
from hicache_core.types import IoContext, OpenContext, Outcome

NO_NAMESPACE = "0" * 32
"""What an operator's session calls its own namespace; nothing is ever stored under it."""


def _one(operation: str) -> Callable[[Any], list[Outcome]]:
    return lambda answer: checked_outcomes(answer, 1, f"batch_{operation}", operation)


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One key of a store."""

    key: str
    nbytes: int
    """As stored, seal included."""
    mtime: float
    """Seconds since the epoch."""

    @property
    def namespace(self) -> str:
        """The first segment of the key."""
        return self.key.partition("/")[0]

    @property
    def pool(self) -> str:
        """`kv` in `…/HASH.kv.l0-30h0-3`; empty where the key has another form."""
        parts = self.key.rpartition("/")[2].split(".")
        return parts[1] if len(parts) == 3 else ""


class RawStore:
    """An opened backend without session or guard."""

    def __init__(self, choice: BackendChoice) -> None:
        self.choice = choice
        self._backend = HookBinding(
            open_backend(choice, OpenContext(namespace=NO_NAMESPACE, seal_bytes=0, inspecting=True))
        )

    def scan(self, namespace: str | None = None) -> Iterator[StoredObject]:
        """Every object of one namespace, or of all.

        Raises:
            NotSupportedError: the store cannot list what it holds.
            StorageError: it failed, or goes round in circles.
        """
        cursor: str | None = None
        seen: set[str] = set()
        while True:
            entries, cursor = self._call("scan", checked_scan, namespace=namespace, cursor=cursor)
            for key, nbytes, mtime in entries:
                yield StoredObject(key, nbytes, mtime)
            if cursor is None:
                return
            if cursor in seen:
                raise StorageError(f"scan of backend {self.choice.spec.name!r} came back to cursor {cursor!r}")
            seen.add(cursor)

    def read(self, stored: StoredObject) -> tuple[Outcome, memoryview]:
        """The object's bytes in fresh page-aligned memory; they are valid where the outcome is HIT.

        REJECTED where it would take more than half of the free memory: what lies in a store need not be a page.
        """
        if stored.nbytes > os.sysconf("SC_AVPHYS_PAGES") * mmap.PAGESIZE // 2:
            return Outcome.REJECTED, memoryview(b"")
        buffer = memoryview(mmap.mmap(-1, max(1, stored.nbytes)))[: stored.nbytes]
        context = IoContext()
        try:
            answer = self._call("batch_get", _one("get"), keys=[stored.key], pages=[[buffer]], ctx=context)
        except StorageError:  # the others can still be read; the store's own counters say more
            return Outcome.UNAVAILABLE, buffer
        outcome: Outcome = answer[0]
        return outcome, buffer

    def exists(self, key: str) -> bool:
        """Whether the store says that it has this key."""
        return bool(self._call("batch_exists", keys=[key], ctx=IoContext()) == 1)

    def delete(self, keys: list[str]) -> list[Outcome]:
        """Remove keys: HIT where there was one.

        Raises:
            NotSupportedError: the store cannot delete.
            StorageError: it failed.
        """

        def check(answer: Any) -> list[Outcome]:
            return checked_outcomes(answer, len(keys), "delete", "delete")

        result: list[Outcome] = self._call("delete", check, keys=list(keys), ctx=IoContext())
        return result

    def stats(self) -> Any:
        """The backend's own counters, or None."""
        return self._backend.call("stats")

    def close(self) -> None:
        """Release the store."""
        self._backend.call("close")

    def _call(self, hook: str, check: Callable[[Any], Any] = lambda answer: answer, **arguments: Any) -> Any:
        """A hook's answer, checked. Whatever the store raises is a StorageError with the cause."""
        try:
            result = self._backend.call(hook, **arguments)
            if result is not None:
                return check(result)
        except HiCacheError:
            raise
        except Exception as error:
            why = hider(self.choice.options)(told(error))
            raise StorageError(f"{hook} of backend {self.choice.spec.name!r} failed: {why}") from error
        else:
            raise NotSupportedError(
                f"backend {self.choice.spec.name!r} has no {hook}; `hicache backends show {self.choice.spec.name}` "
                "lists what it can do"
            )
        return result

    def __enter__(self) -> RawStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
