"""Calls the hooks of one backend object directly, as the core would, and judges the form of each answer."""

from __future__ import annotations

import importlib
import inspect
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hicache_conformance.material import Lent
from hicache_conformance.verdict import CaseFailed, check, short
from hicache_core.types import (
    DELETE_OUTCOMES,
    GET_OUTCOMES,
    SET_OUTCOMES,
    BackendSpec,
    Capabilities,
    HostPoolView,
    IoContext,
    OpenContext,
    Outcome,
    Slots,
)

_FEW = 16
"""Pages of a call up to which each is registered by itself."""


def make_backend(spec: BackendSpec, options: Any, context: OpenContext) -> object:
    """Import the factory and build the backend object, as a session does when it opens."""
    factory = spec.factory
    if isinstance(factory, str):
        module, _, attribute = factory.partition(":")
        factory = getattr(importlib.import_module(module), attribute)
    return factory(options, context)


class Driver:
    """One opened backend. Answers of a wrong type, count or outcome, and exceptions, fail the case at once."""

    def __init__(self, backend: object, capabilities: Capabilities, timeout: float = 60.0) -> None:
        self.backend = backend
        self.capabilities: Capabilities = getattr(backend, "capabilities", None) or capabilities
        self.timeout = timeout
        self._hooks: dict[str, Callable[..., Any] | None] = {}
        self.pools: list[HostPoolView] = []
        """Host pools that are lent."""

    def has(self, hook: str) -> bool:
        """Whether the backend implements the hook."""
        return self._hook(hook) is not None

    def exists(self, keys: Sequence[str]) -> int:
        """batch_exists: the length of the run."""
        answer = self._call("batch_exists", keys=keys, ctx=self.context())
        if type(answer) is not int or not 0 <= answer <= len(keys):
            raise CaseFailed(f"batch_exists of {len(keys)} keys answered {short(answer)}; an int from 0 to the count")
        return answer

    def contains(self, keys: Sequence[str]) -> list[bool] | None:
        """batch_contains, or None where the backend leaves it to the core."""
        if not self.has("batch_contains"):
            return None
        answer = self._call("batch_contains", keys=keys, ctx=self.context())
        if answer is None:
            return None
        check(
            isinstance(answer, list) and len(answer) == len(keys) and all(type(a) is bool for a in answer),
            f"batch_contains of {len(keys)} keys answered {short(answer)}; a bool for each key",
        )
        found: list[bool] = answer
        return found

    def get(self, keys: Sequence[str], pages: Sequence[Lent], **told: Any) -> list[Outcome]:
        """batch_get into the pages' buffers; the canaries around them are looked at. told: fields of ctx."""
        context = self.context(**told)
        with self._lent(pages):
            answer = self._call("batch_get", keys=keys, pages=[p.buffers for p in pages], ctx=context)
        outcomes = self._outcomes("batch_get", answer, len(keys), GET_OUTCOMES)
        for key, page in zip(keys, pages, strict=True):
            check(page.canaries_intact(), f"batch_get wrote outside the buffers of {key!r}")
        return outcomes

    def set(self, keys: Sequence[str], pages: Sequence[Lent], **told: Any) -> list[Outcome]:
        """batch_set from the pages' buffers. told: fields of ctx."""
        context = self.context(**told)
        with self._lent(pages):
            answer = self._call("batch_set", keys=keys, pages=[p.buffers for p in pages], ctx=context)
        return self._outcomes("batch_set", answer, len(keys), SET_OUTCOMES)

    def lend_pool(self, view: HostPoolView) -> None:
        """register_host_pool, where the backend has it."""
        if self.has("register_host_pool"):
            self._call("register_host_pool", view=view)
        self.pools.append(view)

    def take_back_pool(self, view: HostPoolView) -> None:
        """unregister_host_pool, where the backend has it."""
        if self.has("unregister_host_pool"):
            self._call("unregister_host_pool", view=view)
        self.pools.remove(view)

    def get_v1(
        self, keys: Sequence[str], view: HostPoolView, slots: Slots, seals: Lent, **told: Any
    ) -> list[Outcome]:
        """batch_get_v1, or batch_get where the backend leaves it to the core. seals: one buffer for each key."""
        return self._v1("get", GET_OUTCOMES, keys, view, slots, seals, told)

    def set_v1(
        self, keys: Sequence[str], view: HostPoolView, slots: Slots, seals: Lent, **told: Any
    ) -> list[Outcome]:
        """batch_set_v1, or batch_set where the backend leaves it to the core."""
        return self._v1("set", SET_OUTCOMES, keys, view, slots, seals, told)

    def _v1(
        self,
        operation: str,
        legal: frozenset[Outcome],
        keys: Sequence[str],
        view: HostPoolView,
        slots: Slots,
        seals: Lent,
        told: dict[str, Any],
    ) -> list[Outcome]:
        pages = [(seal, *page) for seal, page in zip(seals.buffers, view.pages(slots), strict=True)]
        context = self.context(seals=seals.buffers, pages=pages, **told)
        hook, answer = f"batch_{operation}_v1", None
        with self._lent([seals]):
            if self.has(hook):
                answer = self._call(hook, keys=keys, host_indices=slots, ctx=context)
            if answer is None:
                hook = f"batch_{operation}"
                answer = self._call(hook, keys=keys, pages=pages, ctx=context)
        check(seals.canaries_intact(), f"{hook} wrote beside the seals")
        return self._outcomes(hook, answer, len(keys), legal)

    def delete(self, keys: Sequence[str]) -> list[Outcome] | None:
        """delete, or None where the store does not have it."""
        answer = self._call("delete", keys=keys, ctx=self.context()) if self.has("delete") else None
        return None if answer is None else self._outcomes("delete", answer, len(keys), DELETE_OUTCOMES)

    def clear(self, namespace: str) -> int | None:
        """clear, or None where the store does not have it."""
        answer = self._call("clear", namespace=namespace) if self.has("clear") else None
        if answer is not None and (type(answer) is not int or answer < 0):
            raise CaseFailed(f"clear answered {short(answer)}; how many keys there were")
        return answer

    def scan(self, namespace: str | None) -> list[tuple[str, int, float]] | None:
        """Every page of scan, joined; None where the store does not have it."""
        if not self.has("scan"):
            return None
        found: list[tuple[str, int, float]] = []
        cursor: str | None = None
        for _ in range(100_000):
            answer = self._call("scan", namespace=namespace, cursor=cursor)
            if answer is None:
                return None
            check(
                isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[0], list),
                f"scan answered {short(answer)}; (list of (key, nbytes, mtime), cursor or None)",
            )
            found.extend((key, nbytes, mtime) for key, nbytes, mtime in answer[0])
            cursor = answer[1]
            if cursor is None:
                return found
        raise CaseFailed("scan did not come to an end within 100,000 pages")

    def stats(self) -> Any:
        """stats, or None where the store does not have it."""
        return self._call("stats") if self.has("stats") else None

    def close(self) -> None:
        """Take back the pools that are lent, then close."""
        for view in tuple(self.pools):
            self.take_back_pool(view)
        answer = self._call("close")
        check(answer is None, f"close answered {short(answer)}; None")

    def refused(self, hook: str, **arguments: Any) -> str | None:
        """The exception with which an admin hook refuses an argument, as text; None where it answered."""
        method = self._hook(hook)
        if method is None:
            return "not supported"
        try:
            self._invoke(method, arguments)
        except Exception as error:  # noqa: BLE001 - any refusal is legal here, and it is what the caller asks about
            return repr(error)
        return None

    def context(self, **extra: Any) -> IoContext:
        """What accompanies a call: a deadline far away, and `extra`."""
        return IoContext(deadline=time.monotonic() + self.timeout, **extra)

    def _hook(self, name: str) -> Callable[..., Any] | None:
        if name not in self._hooks:
            self._hooks[name] = getattr(self.backend, name, None)
        return self._hooks[name]

    @contextmanager
    def _lent(self, pages: Sequence[Lent]) -> Iterator[None]:
        """Registers the pages' memory for one call, where the store wants that; each page once.

        Not that of large batches: there it costs more than the call, and a store must take what is not registered
        too, since the core lends it the buffers of whoever calls `session.set`.
        """
        wanted = self.capabilities.registration == "region" and self.has("register_region")
        once = {id(page): page for page in pages if page.spans}
        wanted = wanted and len(once) <= _FEW
        regions = [page.region() for page in once.values()] if wanted else []
        try:
            for region in regions:
                self._call("register_region", buffer=region)
            yield
        finally:
            for region in regions:
                if self.has("unregister_region"):
                    self._call("unregister_region", buffer=region)

    def _call(self, name: str, **arguments: Any) -> Any:
        method = self._hook(name)
        if method is None:
            raise CaseFailed(f"the backend has no hook {name}, which is required")
        try:
            return self._invoke(method, arguments)
        except CaseFailed:
            raise
        except Exception as error:
            raise CaseFailed(f"{name} raised {error!r} instead of answering") from error

    @staticmethod
    def _invoke(method: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        wanted = inspect.signature(method).parameters
        return method(**{name: value for name, value in arguments.items() if name in wanted})

    @staticmethod
    def _outcomes(hook: str, answer: Any, count: int, legal: frozenset[Outcome]) -> list[Outcome]:
        if not isinstance(answer, list) or len(answer) != count or not all(isinstance(a, Outcome) for a in answer):
            raise CaseFailed(f"{hook} of {count} keys answered {short(answer)}; a list of {count} Outcome")
        wrong = sorted({a.name for a in answer} - {o.name for o in legal})
        check(not wrong, f"{hook} answered {', '.join(wrong)}, which it may not")
        outcomes: list[Outcome] = answer
        return outcomes
