"""Tells a forward pass which layers of a load have arrived: three rotating sets of per-layer marks."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass

from hicache_core.errors import MisuseError, TransferError, TransferTimeoutError

_FAILURES_KEPT = 256


@dataclass(slots=True, eq=False)
class _Load:
    """The marks of one load."""

    producer: int
    left: int
    done: list[bool]
    events: list[object | None]
    error: BaseException | None = None

    @property
    def finished(self) -> bool:
        return self.left == 0 or self.error is not None


class LayerDoneCounter:
    """Per-layer completion of loads. Producer ids ascend from 0; id modulo `sets` is the set that it uses.

    The engine's thread calls new_producer; a copy thread calls complete once per layer, or fail once; the forward
    calls wait before each layer's attention. A set is never reused while its load is unfinished, and every load has
    marks of its own, so a wait never sees another load's. Waiting is on a condition: no polling.
    """

    def __init__(self, layer_num: int, sets: int = 3) -> None:
        if layer_num < 1 or sets < 1:
            raise MisuseError(f"a counter of {layer_num} layers and {sets} sets cannot count")
        self.layer_num = layer_num
        self._sets = [_Load(-1, 0, [], []) for _ in range(sets)]
        self._next = 0
        self._failures: OrderedDict[int, BaseException] = OrderedDict()
        self._forgotten = -1  # loads up to here that failed are no longer told apart
        self._changed = threading.Condition()

    def has_free_set(self) -> bool:
        """Whether new_producer would succeed now."""
        return self._sets[self._next % len(self._sets)].finished

    def new_producer(self) -> int:
        """Claim the next set and give its producer id. Raises MisuseError while that set's load is unfinished."""
        with self._changed:
            at = self._next % len(self._sets)
            before = self._sets[at]
            if not before.finished:
                raise MisuseError(
                    f"load {before.producer} is unfinished and all {len(self._sets)} sets are in use: "
                    "ask has_free_set() first and keep the load queued"
                )
            if before.error is not None:
                self._remember(before.producer, before.error)
            layers = self.layer_num
            self._sets[at] = _Load(self._next, layers, [False] * layers, [None] * layers)
            self._next += 1
            return self._next - 1

    def complete(self, producer: int, layer: int, event: object | None = None) -> None:
        """Layer `layer` of this load is in place (or will be when `event`, a device event, has passed)."""
        with self._changed:
            load = self._current(producer)
            if load.done[layer]:
                raise MisuseError(f"layer {layer} of load {producer} was completed twice")
            load.events[layer] = event
            load.done[layer] = True
            load.left -= 1
            self._changed.notify_all()

    def fail(self, producer: int, error: BaseException) -> None:
        """The load stopped: waits for layers that have not completed raise, now and later."""
        with self._changed:
            load = self._current(producer)
            if not load.finished:
                load.error = error
                self._changed.notify_all()

    def wait(self, producer: int, layer: int, timeout: float | None = None) -> object | None:
        """Block until the layer has arrived; the event given to complete, to be waited for on the device's stream.

        timeout: seconds. Raises TransferError with the cause where the load failed, TransferTimeoutError where it
        did not come in time, MisuseError on a layer or load that never was. A load whose set was reused has
        finished, so waiting for it returns at once (or raises what it failed with).
        """
        if not 0 <= layer < self.layer_num:
            raise MisuseError(f"layer {layer} does not exist: the model has {self.layer_num}")
        load = self._sets[producer % len(self._sets)]
        if producer < 0 or load.producer != producer:
            self._past(producer)
            return None
        if not load.done[layer]:
            self._await(load, layer, timeout)
        return load.events[layer]

    def finished(self, producer: int) -> bool:
        """Whether every layer has completed, or the load failed."""
        load = self._sets[producer % len(self._sets)]
        return load.producer != producer or load.finished

    def _await(self, load: _Load, layer: int, timeout: float | None) -> None:
        """Block until the layer of this load is done; its failures as errors."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while not load.done[layer]:
                if load.error is not None:
                    raise _failed(load.producer, layer, load.error)
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise TransferTimeoutError(f"layer {layer} of load {load.producer} did not arrive in {timeout} s")
                self._changed.wait(left)

    def _current(self, producer: int) -> _Load:
        load = self._sets[producer % len(self._sets)]
        if producer < 0 or load.producer != producer:
            raise MisuseError(f"load {producer} holds no set of this counter")
        return load

    def _past(self, producer: int) -> None:
        """A load whose set is another's now: it ended well, or raise what it ended with."""
        with self._changed:
            error = self._failures.get(producer)
            known = self._forgotten < producer < self._next
        if error is not None:
            raise TransferError(f"load {producer} failed: {error}") from error
        if producer < 0 or not known:
            raise MisuseError(f"load {producer} is not known: the newest is {self._next - 1}")

    def _remember(self, producer: int, error: BaseException) -> None:
        self._failures[producer] = error
        if len(self._failures) > _FAILURES_KEPT:
            self._forgotten, _ = self._failures.popitem(last=False)


def _failed(producer: int, layer: int, error: BaseException) -> TransferError:
    failure = TransferError(f"load {producer} failed before layer {layer} arrived: {error}")
    failure.__cause__ = error
    return failure
