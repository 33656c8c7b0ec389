"""A store's own client without hicache: what `make bench-backends` compares a sealed session with.

A plugin offers it through the entry-point group `hicache.bare_clients`: the backend's name → a sequence of
`BareCase`, one for each way of running the store that is to be measured (embedded, a server, …). The client does what
someone would write who knows only the store's SDK: no seals, no checks, the fastest calls that the SDK documents, one
object per page. Both sides move the same bytes from and into memory of the same kind, alternating, in one process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from hicache_core.errors import DuplicateNameError, PluginError

GROUP = "hicache.bare_clients"

PageMemory: TypeAlias = "npt.NDArray[np.uint8]"
"""uint8[slots, page bytes], C-contiguous, page-aligned: row `slot` is the page in that slot."""


class BareClient(Protocol):
    """The store's client, opened on page memory. Calls come from one thread, with at most 128 pages each.

    `remove(keys) -> None` is optional: called between rounds, untimed, so that the store need not grow.
    """

    def put(self, keys: Sequence[str], slots: Sequence[int]) -> None:
        """Store row `slots[i]` of the memory under `keys[i]`, all of them, before it returns.

        Keys are fresh and look like physical keys. Raises whatever it likes where a page is not stored.
        """

    def get(self, keys: Sequence[str], slots: Sequence[int]) -> None:
        """Fill row `slots[i]` from `keys[i]`, all of them. Raises where a page is missing or has another length."""

    def close(self) -> None:
        """Let go of the store and of registered memory."""


@dataclass(frozen=True, slots=True)
class BareCase:
    """One way of running a store, and what a sealed session must reach of its client's throughput there.

    variant: what the table calls it beside the backend's name; "" where there is but one.
    store: (empty directory, bytes that one side will store in all) → context manager that starts a throwaway store
    and gives the backend's options; it raises HiCacheError or OSError, with the reason, where it cannot run here.
    client: (those options, page memory) → the opened client, with its memory registered if the SDK wants that.
    at_least, aim: the share of the client's throughput, for put and for get, that is asked (0: nothing is)
    and that is hoped for.
    apart: each side has a store of its own, since two clients of one store would get in each other's way.
    workers_apart: the session's workers are kept on CPUs of their own (`SessionSettings.worker_cpus`); False where
    the client copies in threads of its own, which want a CPU too.
    """

    variant: str
    store: Callable[[Path, int], AbstractContextManager[Mapping[str, Any]]]
    client: Callable[[Mapping[str, Any], PageMemory], BareClient]
    at_least: float = 0.75
    aim: float | None = None
    apart: bool = False
    workers_apart: bool = True


def bare_cases(backend: str) -> Sequence[BareCase]:
    """The cases of a backend; none where nobody offers any.

    Raises DuplicateNameError where two distributions claim the name, PluginError where the offer cannot be loaded.
    """
    found = list(entry_points(group=GROUP, name=backend))
    if len(found) > 1:
        owners = " and ".join(f"{e.value} ({e.dist.name if e.dist else 'unknown distribution'})" for e in found)
        raise DuplicateNameError(f"several bare clients are registered for backend {backend!r}: {owners}")
    if found:
        return _loaded(found[0])
    if backend == "memory":
        from hicache_core.storage.bare_memory import CASES

        return CASES
    return ()


def backends_with_bare_clients() -> list[str]:
    """Names of the backends that can be compared with their own client, sorted."""
    return sorted({"memory", *(entry.name for entry in entry_points(group=GROUP))})


def _loaded(entry: EntryPoint) -> Sequence[BareCase]:
    try:
        cases = entry.load()
    except ImportError as error:
        raise PluginError(f"bare client {entry.name!r} ({entry.value}) cannot be imported: {error}") from error
    if not isinstance(cases, Sequence) or not all(isinstance(case, BareCase) for case in cases):
        raise PluginError(f"bare client {entry.name!r}: {entry.value} is no sequence of BareCase: {cases!r}")
    return cases
