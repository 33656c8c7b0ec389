"""Streams and events for copies to and from a CUDA device.

Written against torch's documentation and reviewed, never run: no machine with a GPU was at hand. The byte movement
itself is `staged`, which is tested on the CPU; what is untested is the ordering below. The rules it follows:

* a copy must not read device pages before the forward that wrote them is through, nor overwrite pages that an
  earlier forward still reads: the engine's thread records an event on its current stream at submission (`fence`) and
  the side stream waits for it;
* a layer's attention must not start before the layer is in place: the copy thread records an event per layer on the
  side stream, and `wait_event` makes the engine's current stream wait for it, without blocking the CPU;
* a staging buffer must not be refilled while its transfer runs: the copy thread synchronizes on that layer's event.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import cast

import torch

from hicache_core.errors import ConfigError
from hicache_core.pools.device.base import DevicePool
from hicache_core.pools.device.torch_pool import TorchDevicePool
from hicache_core.pools.host.base import HostPool
from hicache_core.transfer.staged import StagedCopier, Synchronous


class CudaOrdering:
    """One side stream per direction; staging buffers are page-locked so that transfers run beside the CPU."""

    pinned = True

    def __init__(self, device: torch.device) -> None:
        self._device = device
        make = torch.cuda.Stream
        self._streams = {name: make(device=device) for name in ("load", "backup")}  # type: ignore[no-untyped-call]

    def fence(self) -> object:
        """An event on the engine's current stream."""
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def side(self, fence: object | None, direction: str) -> AbstractContextManager[object]:
        """The direction's stream, made to wait for the fence."""
        stream = self._streams[direction]
        if fence is not None:
            stream.wait_event(cast("torch.cuda.Event", fence))
        return torch.cuda.stream(stream)

    def record(self, direction: str) -> object:
        """An event on the direction's stream; a copy thread that waits for it sleeps and does not spin."""
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record(self._streams[direction])
        return event

    def synchronize(self, event: object | None) -> None:
        """Block this copy thread (not the GIL) until the event has passed."""
        if event is not None:
            cast("torch.cuda.Event", event).synchronize()

    def wait_event(self, event: object) -> None:
        """Order the engine's current stream after the event."""
        torch.cuda.current_stream(self._device).wait_event(cast("torch.cuda.Event", event))


def staged_copier(host: HostPool, device: DevicePool) -> StagedCopier:
    """The copier for a torch pool on a device that the CPU cannot address. Raises ConfigError on other pools."""
    if not isinstance(device, TorchDevicePool):
        raise ConfigError(f"{type(device).__name__} has neither CPU-addressable memory nor tensors to copy with")
    if device.device.type == "cuda":
        return StagedCopier(host, device, CudaOrdering(device.device))
    return StagedCopier(host, device, Synchronous())
