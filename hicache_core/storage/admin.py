"""Everything that is not the data path: registration, delete, clear, scan, stats, close."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from time import monotonic as wall
from typing import Any, TypeVar

from hicache_core.errors import ConfigError, MisuseError, NotSupportedError, StorageError
from hicache_core.storage.answers import ContractViolation, checked_outcomes, checked_scan, describe
from hicache_core.storage.breaker import Admission
from hicache_core.storage.calls import StoreCalls
from hicache_core.storage.handles import Call, Handle
from hicache_core.storage.parts import Parts
from hicache_core.storage.settings import CloseReport
from hicache_core.types import BATCH_PAGES, HostPoolView, IoContext, Outcome, PoolName

T = TypeVar("T")


class Administration:
    """The admin direction of one session. Calls wait for a worker, and for the store at most `timeout`."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._calls = StoreCalls(parts.admin_group.breaker, parts.ledger, keeps_frames=True)
        self._mutex = threading.Lock()
        self._arriving: set[PoolName] = set()
        """Names of pools that are being registered."""
        self._perhaps_held: list[HostPoolView] = []
        """Pools of which the store did not say whether it has them: kept alive, and taken back at the end."""
        self._closed = threading.Event()
        self._report = CloseReport()

    def register_host_pool(self, view: HostPoolView, timeout: float) -> None:
        """See StorageSession."""
        parts = self._parts
        layouts = parts.guard.capabilities.layouts
        if layouts is not None and view.layout not in layouts:
            raise ConfigError(
                f"store {parts.name!r} cannot take host pool {view.name} in layout {view.layout!r}; "
                f"it takes {', '.join(layouts)}"
            )
        with self._mutex:
            if view.name in parts.pools or view.name in self._arriving:
                raise MisuseError(f"a host pool named {view.name} is registered already; unregister it first")
            self._arriving.add(view.name)
        try:
            self._do("register_host_pool", timeout, view=view)
            parts.pools[view.name] = view
        except BaseException:
            self._perhaps_held.append(view)
            raise
        finally:
            self._arriving.discard(view.name)

    def unregister_host_pool(self, view: HostPoolView, timeout: float) -> None:
        """See StorageSession."""
        with self._mutex:
            if self._parts.pools.get(view.name) is not view:
                raise MisuseError(f"host pool {view.name} is not registered with this session")
            del self._parts.pools[view.name]
        try:
            self._do("unregister_host_pool", timeout, view=view)
        except BaseException:
            self._perhaps_held.append(view)
            raise

    def allocate_host_memory(self, nbytes: int, alignment: int, timeout: float) -> memoryview | None:
        """See StorageSession."""
        memory = self._do("allocate_host_memory", timeout, nbytes=nbytes, alignment=alignment)
        if memory is None:
            return None
        view = memoryview(memory).cast("B")
        if view.nbytes < nbytes or view.readonly:
            raise StorageError(
                f"store {self._parts.name!r} allocated {view.nbytes} bytes where {nbytes} were asked for"
            )
        return view

    def delete(self, hashes: Sequence[str], pool: str, timeout: float | None) -> list[Outcome]:
        """See StorageSession."""
        parts = self._parts
        if parts.guard.capabilities.delete == "none":
            raise self._unsupported("delete")
        keys = parts.schema.physical(hashes, pool)
        if not keys:
            return []
        deadline = parts.deadline(timeout)
        ctx = IoContext(deadline, 0, parts.identity.tenant)

        def work(call: Call) -> list[Outcome]:
            outcomes: list[Outcome] = []
            for start in range(0, len(keys), BATCH_PAGES):
                part = keys[start : start + BATCH_PAGES]

                def issue(lo: int, hi: int, part: Sequence[str] = part) -> list[Outcome]:
                    answer = parts.guard.dispatch.call("delete", keys=part[lo:hi], ctx=ctx)
                    return checked_outcomes(answer, hi - lo, "delete", "delete")

                outcomes += self._calls.outcomes(call, "delete", len(part), issue)
                if not call.publish(list(outcomes)):
                    break
            return outcomes

        call = Call(work, lambda outcome, done: (done or []) + [outcome] * (len(keys) - len(done or [])))
        outcomes: list[Outcome] = self._wait(call, deadline)
        parts.ledger.pages("delete", outcomes)
        gone = (Outcome.HIT, Outcome.MISS)
        parts.guard.damage.forgive([key for key, outcome in zip(keys, outcomes, strict=True) if outcome in gone])
        return outcomes

    def clear(self, timeout: float | None) -> int:
        """See StorageSession."""
        namespace = self._parts.schema.namespace
        count: int | None = self._do("clear", timeout, _checked_count, namespace=namespace)
        if count is None:
            raise self._unsupported("clear")
        self._parts.guard.damage.forget()
        return count

    def scan(
        self, cursor: str | None, all_namespaces: bool, timeout: float | None
    ) -> tuple[list[tuple[str, int, float]], str | None]:
        """See StorageSession."""
        namespace = None if all_namespaces else self._parts.schema.namespace
        found: tuple[list[tuple[str, int, float]], str | None] | None = self._do(
            "scan", timeout, checked_scan, namespace=namespace, cursor=cursor
        )
        if found is None:
            raise self._unsupported("scan")
        return found

    def stats(self, timeout: float | None) -> Any | None:
        """See StorageSession."""
        return self._do("stats", timeout)

    def close(self, timeout: float) -> CloseReport:
        """See StorageSession."""
        parts = self._parts
        parts.check_process()
        with self._mutex:
            again, parts.closed = parts.closed, True
        if again:
            if not self._closed.wait(timeout):
                return CloseReport(sum(g.running for g in parts.groups), ["another thread is still closing it"])
            return self._report
        deadline, half = wall() + timeout, wall() + timeout / 2
        io = (parts.read_group, parts.write_group)
        for group in io:
            group.close()
        # a store that holds calls may let them go when it is closed, so half of the time is kept for that
        calm = False not in [group.drain(half) for group in io]
        if not calm:
            for group in io:
                group.give_up_running()
        errors: list[str] = []
        finished = self._closing_call(calm, errors, (half + deadline) / 2)
        if not finished and parts.admin_group.give_up_running():  # another admin call was in the way
            finished = self._closing_call(calm, errors, deadline)
        parts.admin_group.close()
        if not finished:
            errors.append(f"close did not return within {timeout} s")
        for group in parts.groups:
            group.join(deadline)
        parts.keeper.close(max(deadline, wall() + 1.0))
        parts.pools.clear()
        if finished:
            self._perhaps_held.clear()
        self._report = CloseReport(sum(group.running for group in parts.groups), errors)
        self._closed.set()
        return self._report

    def _closing_call(self, calm: bool, errors: list[str], deadline: float) -> bool:
        """Unregister (only memory that no call touches any more) and close, on the admin worker."""
        parts = self._parts

        def step(hook: str, told_to: list[str] = errors, **arguments: Any) -> None:
            try:
                parts.guard.dispatch.call(hook, **arguments)
            except BaseException as error:  # noqa: BLE001 - the rest of the store is closed all the same
                parts.ledger.exception(hook, error)
                told_to.append(f"{hook}: {parts.ledger.text_of(error)}")

        def work(call: Call) -> bool:
            if calm:
                for view in list(parts.pools.values()):
                    step("unregister_host_pool", view=view)
                for view in self._perhaps_held:
                    step("unregister_host_pool", told_to=[], view=view)  # a store that never had it may well object
                if parts.guard.capabilities.registration == "region":
                    regions = [ring.memory for ring in parts.rings]
                    for staging in parts.stagings:
                        regions += staging.regions
                    for region in regions:
                        step("unregister_region", buffer=region)
            step("close")
            return True

        handle: Handle[bool] = Handle([Call(work, lambda *_: False)], lambda answers: answers[0], None, wall)
        for call in handle.calls:
            parts.admin_group.submit(call)
        return handle.result(max(0.0, deadline - wall()))

    def _do(
        self, hook: str, timeout: float | None, check: Callable[[Any], Any] = lambda answer: answer, **arguments: Any
    ) -> Any:
        """One hook call, checked. None where nobody handles it; StorageError with the cause where it fails."""
        parts = self._parts
        deadline = parts.deadline(timeout)
        causes: list[BaseException] = []

        def issue() -> tuple[Any]:
            try:
                return (check(parts.guard.dispatch.call(hook, **arguments)),)
            except BaseException as error:
                causes.append(error)
                raise

        def work(call: Call) -> Any:
            if self._calls.breaker.admit() is Admission.BLOCKED:
                return "breaker_open"
            try:
                return self._calls.value(call, hook, issue)
            finally:
                self._calls.breaker.end_probe()

        answer = self._wait(Call(work, lambda outcome, _: f"{outcome.value} after {timeout} s"), deadline)
        if isinstance(answer, tuple):
            return answer[0]
        cause = causes[-1] if causes else None
        why = parts.ledger.text_of(cause) if cause is not None else answer or "no answer"
        raise StorageError(f"{hook} of store {parts.name!r} failed: {why}") from cause

    def _wait(self, call: Call, deadline: float) -> Any:
        handle: Handle[Any] = Handle([call], lambda answers: answers[0], deadline, self._parts.clock)
        self._parts.admin_group.submit(call)
        return handle.result()

    def _unsupported(self, what: str) -> NotSupportedError:
        return NotSupportedError(f"store {self._parts.name!r} does not support {what}")


def _checked_count(answer: Any) -> int | None:
    if answer is not None and (type(answer) is not int or answer < 0):
        raise ContractViolation("clear", f"answered {describe(answer)}; a count was due")
    return answer
