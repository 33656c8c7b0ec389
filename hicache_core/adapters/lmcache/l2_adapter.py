"""The L2 adapter: tasks of LMCache's store and prefetch controllers as operations of a session.

No call waits for the store, but `delete` and `list_l2_keys`, which LMCache makes on threads where it may. A load is
told of when it is answered: the session reads into memory of its own and copies under the call's claim
(`lent_pools`), so nothing is written into LMCache's memory after that. A store is told of when it is answered and
the store has let go of LMCache's memory, or `hold` seconds after that answer.
"""

from __future__ import annotations

import functools
import itertools
import logging
import threading
from collections.abc import Callable
from typing import Any

from lmcache.lmcache_native import Bitmap
from lmcache.v1.distributed.api import EncodedObjectKey, KeyEntry, KeyListPage
from lmcache.v1.distributed.internal_api import L2StoreResult
from lmcache.v1.distributed.l2_adapters.base import L2AdapterInterface

from hicache_core.adapters.lmcache import engine
from hicache_core.adapters.lmcache.config import WHERE, HiCacheL2AdapterConfig
from hicache_core.adapters.lmcache.contexts import (
    Contexts,
    Part,
    layout_of_desc,
    layout_of_object,
    server_identity,
)
from hicache_core.adapters.lmcache.listing import list_page
from hicache_core.adapters.lmcache.options import L2Options, Models
from hicache_core.adapters.lmcache.tasks import Locks, Results, Task, Turnstile
from hicache_core.adapters.untried import warn_of_untried_version
from hicache_core.errors import MisuseError, NotSupportedError, StorageError, told, trace_of
from hicache_core.storage import Handle, open_session
from hicache_core.types import Outcome

_CLOSE = 5.0
"""Seconds that `close` waits for calls inside the store."""

_log = logging.getLogger(__name__)


class HiCacheL2Adapter(L2AdapterInterface):  # type: ignore[misc]
    """A store of hicache as an L2 of LMCache's storage manager. Thread-safe.

    config: a HiCacheL2AdapterConfig, or its dict. Raises ConfigError and its kinds, PluginError or OpenError, each
    with what to change.
    """

    def __init__(self, config: HiCacheL2AdapterConfig | dict[str, Any], l1_memory_desc: Any = None) -> None:
        warn_of_untried_version("lmcache")
        if isinstance(config, dict):
            config = HiCacheL2AdapterConfig.from_dict(config)
        options: L2Options = config.options
        super().__init__(max_capacity_bytes=options.capacity)
        models = Models(options, WHERE)
        identity = server_identity(models, options.model, engine.short_version(), options.tenant)
        self.session = open_session(
            options.choice(WHERE),
            identity=identity,
            settings=options.settings(WHERE),
            transforms=options.transforms,
            observers=options.observers,
        )
        self._hold = options.hold
        self._contexts = Contexts(models)
        self._stores, self._lookups, self._loads = Results(), Results(), Results()
        self._turnstile = Turnstile(2 * self.session.settings.write_workers)
        self._locks = Locks()
        self._numbers = itertools.count(1)
        self._closed = False

    # -- events

    def get_store_event_fd(self) -> int:
        """Readable when a store has ended."""
        return self._stores.fileno()

    def get_lookup_and_lock_event_fd(self) -> int:
        """Readable when a lookup has ended."""
        return self._lookups.fileno()

    def get_load_event_fd(self) -> int:
        """Readable when a load has ended."""
        return self._loads.fileno()

    # -- stores

    def submit_store_task(self, keys: list[Any], objects: list[Any]) -> int:
        """Store each object. The task fails where one of them does; the others are in the store all the same."""
        task = Task(next(self._numbers), list(keys), list(objects))
        self._guarded(task, self._end_store, lambda: self._queue_store(task))
        return task.number

    def _queue_store(self, task: Task) -> None:
        views = _views(task)
        task.sizes = [len(view) for view in views]
        parts = self._contexts.by_pool(task.keys, [layout_of_object(obj) for obj in task.objects])
        task.unanswered = task.held = len(parts)
        if not parts:
            self._end_store(task)
            return
        task.begin = lambda: self._guarded(task, self._end_store, lambda: self._begin_store(task, parts, views))
        self._turnstile.enter(task)

    def _begin_store(self, task: Task, parts: list[Part], views: list[memoryview]) -> None:
        for part in parts:
            pages = [[views[i]] for i in part.indices]
            part.context.nbytes = len(pages[0][0])
            try:
                handle = self.session.submit_set(part.hashes, pages, pool=part.context.pool)
            except Exception as error:  # noqa: BLE001 - other parts may be under way: the task ends with them
                self._tell_of(error)
                self._part_stored(task, [], [], late=False)
                self._let_go(task)
                continue
            handle.add_done_callback(functools.partial(self._stored, task, part))
            handle.add_returned_callback(functools.partial(self._let_go, task))

    def _stored(self, task: Task, part: Part, handle: Handle[list[Outcome]]) -> None:
        """On a worker: the store has answered for a part."""
        outcomes = _outcomes(handle, len(part.indices))
        good = [i for i, outcome in zip(part.indices, outcomes, strict=True) if outcome]
        new = [i for i, outcome in zip(part.indices, outcomes, strict=True) if outcome is Outcome.STORED]
        self._part_stored(task, good, new, late=Outcome.TIMEOUT in outcomes)

    def _part_stored(self, task: Task, good: list[int], new: list[int], *, late: bool) -> None:
        with task.mutex:
            task.good += good
            task.new += new
            task.unanswered -= 1
            last = not task.unanswered
            task.late |= late
            if last and task.held and task.late:
                task.timer = threading.Timer(self._hold, self._held_too_long, (task,))
                task.timer.daemon = True
                task.timer.start()
        if last:
            self._turnstile.leave(task)
            self._end_store_when_free(task)

    def _let_go(self, task: Task, _: object = None) -> None:
        """On a worker: the store no longer touches a part's memory."""
        with task.mutex:
            task.held -= 1
        self._end_store_when_free(task)

    def _end_store_when_free(self, task: Task) -> None:
        with task.mutex:
            wait = bool(task.unanswered or task.held)
        if not wait:
            self._end_store(task)

    def _held_too_long(self, task: Task) -> None:
        _log.warning(
            "the store has not let go of %d objects %.0f s after their deadline; LMCache may use their memory again. "
            "A page that is written from it now is damaged and will be a miss",
            len(task.keys),
            self._hold,
        )
        self._end_store(task)

    def _end_store(self, task: Task) -> None:
        with task.mutex:
            if task.ended:
                return
            task.ended = True
            if task.timer is not None:
                task.timer.cancel()
        self._turnstile.leave(task)
        new = set(task.new)
        self._notify(self._notify_keys_stored, [task.keys[i] for i in new], [task.sizes[i] for i in new])
        self._notify(self._notify_keys_accessed, [task.keys[i] for i in task.good if i not in new])
        complete = len(task.good) == len(task.keys)
        self._stores.tell(task.number, L2StoreResult(complete, sum(task.sizes[i] for i in new) if complete else 0))

    def pop_completed_store_tasks(self) -> dict[int, L2StoreResult]:
        """Every store that has ended since the last call."""
        return self._stores.take_all()

    # -- lookups

    def submit_lookup_and_lock_task(self, keys: list[Any], group_layout_descs: dict[int, Any]) -> int:
        """Which keys the store has; those are locked against `delete` until `submit_unlock`."""
        task = Task(next(self._numbers), list(keys))
        self._guarded(task, self._end_lookup, lambda: self._begin_lookup(task, group_layout_descs))
        return task.number

    def _begin_lookup(self, task: Task, descs: dict[int, Any]) -> None:
        layouts = {group: layout_of_desc(desc) for group, desc in descs.items()}
        parts = self._contexts.by_pool(task.keys, [layouts.get(key.object_group_id) for key in task.keys])
        task.unanswered = len(parts)
        for part in parts:
            try:
                handle = self.session.submit_contains(part.hashes, pool=part.context.pool)
            except Exception as error:  # noqa: BLE001 - other parts may be under way: the task ends with them
                self._tell_of(error)
                self._answered(task, [], self._end_lookup)
                continue
            handle.add_done_callback(functools.partial(self._looked_up, task, part))
        if not parts:
            self._end_lookup(task)

    def _looked_up(self, task: Task, part: Part, handle: Handle[list[bool]]) -> None:
        try:
            found = handle.result()
        except BaseException as error:  # noqa: BLE001 - a fault of the core; the engine recomputes
            _log.error("a lookup of the LMCache adapter failed:\n%s", trace_of(error))
            found = [False] * len(part.indices)
        self._answered(task, [i for i, there in zip(part.indices, found, strict=True) if there], self._end_lookup)

    def _end_lookup(self, task: Task) -> None:
        if _first_end(task):
            found = [task.keys[i] for i in task.good]
            self._locks.lock(found)
            self._lookups.tell(task.number, _bitmap(task))

    def query_lookup_and_lock_result(self, task_id: int) -> Bitmap | None:
        """One bit per key, once; None before."""
        return self._lookups.take(task_id)

    def submit_unlock(self, keys: list[Any]) -> None:
        """The counterpart of a lookup."""
        self._locks.unlock(keys)

    # -- loads

    def submit_load_task(self, keys: list[Any], objects: list[Any]) -> int:
        """Fill each object."""
        task = Task(next(self._numbers), list(keys), list(objects))
        self._guarded(task, self._end_load, lambda: self._begin_load(task))
        return task.number

    def _begin_load(self, task: Task) -> None:
        views = _views(task)
        parts = self._contexts.by_pool(task.keys, [layout_of_object(obj) for obj in task.objects])
        task.unanswered = len(parts)
        for part in parts:
            pages = [[views[i]] for i in part.indices]
            part.context.nbytes = len(pages[0][0])
            try:
                handle = self.session.submit_get(part.hashes, pages, pool=part.context.pool)
            except Exception as error:  # noqa: BLE001 - other parts may be under way: the task ends with them
                self._tell_of(error)
                self._answered(task, [], self._end_load)
                continue
            handle.add_done_callback(functools.partial(self._loaded, task, part))
        if not parts:
            self._end_load(task)

    def _loaded(self, task: Task, part: Part, handle: Handle[list[Outcome]]) -> None:
        outcomes = _outcomes(handle, len(part.indices))
        self._answered(task, [i for i, out in zip(part.indices, outcomes, strict=True) if out], self._end_load)

    def _end_load(self, task: Task) -> None:
        if _first_end(task):
            self._notify(self._notify_keys_accessed, [task.keys[i] for i in task.good])
            self._loads.tell(task.number, _bitmap(task))

    def query_load_result(self, task_id: int) -> Bitmap | None:
        """One bit per key, once; None before. A key without its bit has no defined bytes in its object."""
        return self._loads.take(task_id)

    # -- what tasks have in common

    def _guarded(self, task: Task, end: Callable[[Task], None], work: Callable[[], None]) -> None:
        """A task that cannot be begun ends as failed: a controller has nothing that it could do with an exception."""
        try:
            work()
        except Exception as error:  # noqa: BLE001 - told, and the task ends
            self._tell_of(error)
            end(task)

    def _tell_of(self, error: Exception) -> None:
        if not self._closed:
            _log.error("a task of the LMCache adapter could not be begun:\n%s", trace_of(error))

    def _answered(self, task: Task, good: list[int], end: Callable[[Task], None]) -> None:
        with task.mutex:
            task.good += good
            task.unanswered -= 1
            last = not task.unanswered
        if last:
            end(task)

    def _notify(self, notify: Callable[..., None], keys: list[Any], *more: Any) -> None:
        """Tell LMCache's listeners. What they raise is theirs and must not lose a result."""
        if not keys:
            return
        try:
            notify(keys, *more)
        except Exception as error:  # noqa: BLE001 - somebody else's listener
            _log.warning("a listener of LMCache's L2 raised %s", told(error))

    # -- administration

    def delete(self, keys: list[Any]) -> None:
        """Delete what is not locked. Waits for the store, by its deadline. Never raises."""
        for part in self._contexts.by_pool(free := self._locks.free(keys)):
            try:
                outcomes = self.session.delete(part.hashes, pool=part.context.pool)
            except NotSupportedError:
                _log.warning("the store %r deletes nothing; let it evict by itself", self.session.backend_name)
                return
            except (StorageError, RuntimeError) as error:
                _log.warning("LMCache's objects could not be deleted: %s", told(error))
                return
            gone = [free[i] for i, out in zip(part.indices, outcomes, strict=True) if out is Outcome.HIT]
            self._notify(self._notify_keys_deleted, gone, [part.context.nbytes] * len(gone))

    def list_l2_keys(
        self, model_name: str | None = None, page_size: int = 500, cursor: str | None = None
    ) -> KeyListPage:
        """Objects of every context that this process has met, also those of processes before it.

        Raises NotImplementedError where the store cannot list, ValueError for a bad cursor or page size.
        """
        entries, following = list_page(self.session, self._contexts, model_name, page_size, cursor)
        return KeyListPage(
            tuple(
                KeyEntry(EncodedObjectKey(chunk, context.model, context.kv_rank, context.group, context.salt), nbytes)
                for chunk, context, nbytes in entries
            ),
            following,
        )

    def report_status(self) -> dict[str, Any]:
        """For LMCache's /status."""
        status = self.session.status()
        return {
            "is_healthy": status.healthy,
            "type": "HiCacheL2Adapter",
            "backend": status.backend,
            "namespace": status.namespace,
            "stores_waiting": len(self._turnstile),
            "locked_keys": len(self._locks),
            "breakers": {name: breaker.state for name, breaker in status.breakers.items()},
            "problems": status.problems,
        }

    def close(self) -> None:
        """End threads, close the store and the three descriptors. Idempotent; waits a few seconds at most."""
        if self._closed:
            return
        self._closed = True
        self.session.close(_CLOSE)
        for results in (self._stores, self._lookups, self._loads):
            results.close()

    def __repr__(self) -> str:
        return f"<HiCacheL2Adapter {self.session!r}>"


def _views(task: Task) -> list[memoryview]:
    if len(task.objects) != len(task.keys):
        raise MisuseError(f"{len(task.keys)} keys with {len(task.objects)} objects")
    return [memoryview(obj.byte_array).cast("B") for obj in task.objects]


def _outcomes(handle: Handle[list[Outcome]], count: int) -> list[Outcome]:
    try:
        return handle.result()
    except BaseException as error:  # noqa: BLE001 - a fault of the core; the engine recomputes
        _log.error("an operation of the LMCache adapter failed:\n%s", trace_of(error))
        return [Outcome.UNAVAILABLE] * count


def _first_end(task: Task) -> bool:
    with task.mutex:
        first, task.ended = not task.ended, True
    return first


def _bitmap(task: Task) -> Bitmap:
    bits = Bitmap(len(task.keys))
    for index in task.good:
        bits.set(index)
    return bits
