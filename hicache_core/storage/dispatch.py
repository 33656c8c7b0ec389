"""pluggy at work: one manager per session with the backend, the core's defaults and the observers.

Order of every hook, outermost first: observers, the core's recorder, the backend, the core's default. The
recorder notes what the backend answered, and the core believes that note: an observer can neither change a
result nor make a call fail.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import Any

import pluggy

from hicache_core.errors import HookError, MisuseError, let_go_of_frames, trace_of
from hicache_core.plugin.checks import HOOKS
from hicache_core.plugin.spec import PROJECT, DataPlaneSpec, hookimpl
from hicache_core.storage.binding import HookBinding
from hicache_core.storage.defaults import Defaults
from hicache_core.storage.ledger import StorageLedger
from hicache_core.types import PoolTransfer

_log = logging.getLogger(__name__)


class _Manager(pluggy.PluginManager):
    """A plugin manager that can be frozen."""

    def __init__(self) -> None:
        super().__init__(PROJECT)
        self.frozen = False

    def register(self, plugin: Any, name: str | None = None) -> str | None:
        self._refuse_if_frozen()
        return super().register(plugin, name)

    def unregister(self, plugin: Any = None, name: str | None = None) -> Any:
        self._refuse_if_frozen()
        return super().unregister(plugin, name)

    def _refuse_if_frozen(self) -> None:
        if self.frozen:
            raise MisuseError("the plugins of an open session are fixed; open another session")


class _Notes(threading.local):
    """What the backend answered in this thread's current call: [(result, exception)]."""

    def __init__(self) -> None:
        self.taken: list[tuple[Any, BaseException | None]] = []


def _recorder(notes: _Notes) -> object:
    def make(name: str) -> Any:
        def record(self: object) -> Generator[None, Any, Any]:
            try:
                result = yield
            except BaseException as error:
                notes.taken.append((None, error))
                raise
            notes.taken.append((result, None))
            return result

        record.__name__, record.__qualname__ = name, f"Recorder.{name}"
        return hookimpl(wrapper=True, trylast=True)(record)

    recorder: object = type("Recorder", (), {name: make(name) for name in HOOKS})()
    return recorder


class Dispatch:
    """Calls hooks by keyword. Raises what the backend raised; `ContractViolation` from a default.

    backend: the opened object, its hooks checked. Raises HookError where an observer is not one.
    """

    def __init__(
        self,
        backend: object,
        *,
        ledger: StorageLedger,
        observers: Sequence[object] = (),
    ) -> None:
        self._ledger = ledger
        self._notes = _Notes()
        self.backend = HookBinding(backend)
        self._manager = manager = _Manager()
        manager.add_hookspecs(DataPlaneSpec)
        try:
            manager.register(Defaults(self.backend), "defaults")
            manager.register(backend, "backend")
            for number, observer in enumerate(observers):
                manager.register(observer, f"observer {number} ({type(observer).__name__})")
            manager.register(_recorder(self._notes), "recorder")
            manager.check_pending()
        except (pluggy.PluginValidationError, ValueError) as error:
            raise HookError(str(error)) from error
        _assert_order(manager)
        manager.frozen = True
        self._observed: dict[str, Callable[..., Any]] = {name: getattr(manager.hook, name) for name in HOOKS}
        self._bare: dict[str, Callable[..., Any]] = (
            {name: manager.subset_hook_caller(name, list(observers)) for name in HOOKS}
            if observers
            else self._observed
        )

    def call(self, hook: str, **arguments: Any) -> Any:
        """What the backend (or the default in its place) answered. None: nobody handles this hook."""
        self._ledger.call(hook)
        notes = self._notes
        outer, notes.taken = notes.taken, []
        try:
            try:
                self._observed[hook](**_copied(arguments))
            except BaseException as error:  # noqa: BLE001 - the note below tells whose it was; both are kept
                if not notes.taken or notes.taken[-1][1] is not error:
                    count = self._ledger.observer_error(hook, error)
                    if count == 1:
                        _log.warning(
                            "an observer raised in %s; the call goes on without:\n%s",
                            hook,
                            self._ledger.hide(trace_of(error)),
                        )
                    let_go_of_frames(error)
                if not notes.taken:  # it raised before the backend was reached
                    self._bare_call(hook, arguments)
            result, failure = notes.taken[-1]
        finally:
            notes.taken = outer
        if failure is not None:
            try:
                raise failure
            finally:
                del failure  # its traceback holds this frame, and the frame the lent memory
        return result

    def _bare_call(self, hook: str, arguments: dict[str, Any]) -> None:
        try:
            self._bare[hook](**_copied(arguments))
        except BaseException:
            if not self._notes.taken:
                raise


def _copied(arguments: dict[str, Any]) -> dict[str, Any]:
    """A backend or an observer that alters a list alters its own copy: the guard goes by what it sent."""
    return {name: _own(value) if type(value) is list else value for name, value in arguments.items()}


def _own(values: list[Any]) -> list[Any]:
    if values and type(values[0]) is PoolTransfer:
        return [replace(transfer, keys=list(transfer.keys)) for transfer in values]
    return list(values)


def _assert_order(manager: _Manager) -> None:
    """Refuse what could stand between the backend and the core, and prove that nothing does."""
    for name in HOOKS:
        order = []
        for impl in getattr(manager.hook, name).get_hookimpls():
            who = impl.plugin_name
            wraps = impl.wrapper or impl.hookwrapper
            if who == "backend" and (wraps or impl.tryfirst or impl.trylast):
                raise HookError(f"{name} of the backend is declared wrapper, tryfirst or trylast")
            if who.startswith("observer"):
                if not wraps:
                    raise HookError(f"{name} of {who} is not a wrapper: an observer only sees and times")
                if impl.tryfirst or impl.trylast:
                    raise HookError(f"{name} of {who} is declared tryfirst or trylast")
                who = "observer"
            order.append(who)
        places = {"defaults": 0, "backend": 1, "recorder": 2, "observer": 3}
        if [places[who] for who in order] != sorted(places[who] for who in order) or order.count("recorder") != 1:
            raise HookError(f"the hooks of {name} stand in the order {order}")
