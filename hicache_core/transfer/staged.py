"""Copies for device memory that the CPU cannot address: through torch, with a staging buffer in between.

Host to device: the CPU gathers a layer's rows into the staging buffer, one transfer carries it over, `index_copy_`
puts the rows in their pages. Device to host: the reverse. What orders this against the device's own work is the
`Ordering`: nothing for devices whose torch calls are synchronous, streams and events for CUDA (see `cuda`).
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from hicache_core.pools.device.torch_pool import TorchDevicePool
from hicache_core.pools.host.base import HostPool
from hicache_core.pools.pages import Bytes
from hicache_core.types import Slots


class Ordering(Protocol):
    """How copies are ordered against the device's other work. One instance per copier, shared by its two threads."""

    pinned: bool
    """Whether staging buffers are page-locked."""

    def fence(self) -> object | None:
        """Engine's thread: a mark of the work submitted so far."""

    def side(self, fence: object | None, direction: str) -> AbstractContextManager[object]:
        """Copy thread: torch calls inside go to that direction's side stream, after `fence`."""

    def record(self, direction: str) -> object | None:
        """Copy thread: an event for what was submitted to the side stream so far."""

    def synchronize(self, event: object | None) -> None:
        """Copy thread: return when the event has passed."""

    def wait_event(self, event: object) -> None:
        """Engine's thread: order what it submits next after the event."""


class Synchronous:
    """Ordering of devices on which a torch call has done its work when it returns, or orders itself."""

    pinned = False

    def fence(self) -> None:
        """Nothing to mark."""

    def side(self, fence: object | None, direction: str) -> AbstractContextManager[object]:
        """The ordinary queue of the device."""
        return nullcontext()

    def record(self, direction: str) -> None:
        """Nothing to record."""

    def synchronize(self, event: object | None) -> None:
        """Nothing to wait for."""

    def wait_event(self, event: object) -> None:
        """Nothing to wait for."""


class StagedCopier:
    """Copier over torch. Two staging buffers per direction of one layer of the largest submission so far."""

    def __init__(self, host: HostPool, device: TorchDevicePool, ordering: Ordering) -> None:
        self._ordering = ordering
        self._device = device.device
        self._host = [_host_view(host, part) for part in range(len(host.placements))]
        tensors = device.byte_tensors()
        self._tensors = [
            tensors[at.part.array][..., at.part.column : at.part.column + at.part.row_bytes] for at in host.placements
        ]
        self._layers = host.geometry.layer_num
        self._stages: dict[tuple[str, int, int], torch.Tensor] = {}
        self._busy: dict[tuple[str, int], object | None] = {}

    def fence(self) -> object | None:
        """See Copier."""
        return self._ordering.fence()

    def load_layer(self, layer: int, host_slots: Slots, device_slots: Slots, fence: object | None) -> object | None:
        """See Copier."""
        turn = layer % 2
        self._ordering.synchronize(self._busy.pop(("load", turn), None))
        with self._ordering.side(fence, "load"):
            index = torch.from_numpy(device_slots).to(self._device)
            for part, (host, tensor) in enumerate(zip(self._host, self._tensors, strict=True)):
                stage = self._stage("load", turn, part, host_slots.size)
                stage.numpy()[...] = host[layer, host_slots]
                tensor[layer].index_copy_(0, index, stage.to(self._device, non_blocking=True))
            event = self._ordering.record("load")
        self._busy["load", turn] = event
        return event

    def backup(self, host_slots: Slots, device_slots: Slots, fence: object | None) -> None:
        """See Copier. While layer n's bytes are spread over the host pool, layer n + 1's are on their way."""
        with self._ordering.side(fence, "backup"):
            index = torch.from_numpy(device_slots).to(self._device)
            before: tuple[int, object | None] | None = None
            for layer in range(self._layers):
                for part, tensor in enumerate(self._tensors):
                    stage = self._stage("backup", layer % 2, part, host_slots.size)
                    stage.copy_(tensor[layer].index_select(0, index), non_blocking=True)
                event = self._ordering.record("backup")
                if before is not None:
                    self._land(*before, host_slots)
                before = layer, event
            if before is not None:
                self._land(*before, host_slots)

    def finish_load(self) -> None:
        """See Copier."""
        for turn in (0, 1):
            self._ordering.synchronize(self._busy.pop(("load", turn), None))

    def wait_event(self, event: object) -> None:
        """See Copier."""
        self._ordering.wait_event(event)

    def _land(self, layer: int, event: object | None, host_slots: Slots) -> None:
        """Spread a layer that has arrived in its staging buffers over the host pages."""
        self._ordering.synchronize(event)
        for part, host in enumerate(self._host):
            host[layer, host_slots] = self._stage("backup", layer % 2, part, host_slots.size).numpy()

    def _stage(self, direction: str, turn: int, part: int, pages: int) -> torch.Tensor:
        """A staging buffer uint8[pages, page_size, head, row]."""
        key, shape = (direction, turn, part), self._tensors[part].shape[2:]
        stage = self._stages.get(key)
        if stage is None or stage.shape[0] < pages:
            stage = torch.empty((pages, *shape), dtype=torch.uint8, pin_memory=self._ordering.pinned)
            self._stages[key] = stage
        return stage[:pages]


def _host_view(host: HostPool, part: int) -> npt.NDArray[np.uint8]:
    """One part of the host pool as uint8[layer, page, token, head, row]."""
    at, geometry = host.placements[part], host.geometry
    shape = (geometry.layer_num, host.num_pages, geometry.page_size, geometry.head_num, at.part.row_bytes)
    view: Bytes = np.ndarray(shape, np.uint8, host.buffer.data, at.offset, (at.layer, at.page, at.token, at.head, 1))
    return view
