"""Copies between two pools that the CPU can address, without a Python loop over tokens.

Both pools are seen as arrays [layer, page, token, head] of rows, a row being the longest run of bytes that is whole
on both sides: a head's vector (page_head), a token's heads (page_first), or a page of a layer (layer_first,
page_first_direct). Two ways to move pages, chosen by how many bytes one call moves:

* runs: pages that follow one another in both pools are one `np.copyto` of 8-byte words: no temporary;
* scattered: fancy indexing of void-dtype rows, one call per layer (a backup: for all layers), through a temporary
  array of at most 4 MiB.

Both release the GIL. Measured on two cores with nothing else to do, numpy 2.4, medians of 7, in ms, for 64 pages of
the reference model (47 MB of K and V; one plain copy of as many bytes: 6.3); to measure again:
`python -m hicache_core.transfer.measure`.

    layout              slots        backup runs/scattered   load runs/scattered
    layer_first         random             8.7 / 12.0             12.4 / 13.5
    layer_first         consecutive        7.2 / 10.6              7.9 / 12.7
    page_first          random             9.8 / 11.8             15.1 / 11.6
    page_first          consecutive        8.4 / 11.0             10.5 / 12.0
    page_first_direct   random             9.0 / 10.6             12.3 / 12.9
    page_first_direct   consecutive        7.2 / 10.0              8.6 / 12.2
    page_head           random            12.4 / 16.4             16.2 / 23.4
    page_head           consecutive       12.3 / 13.9             12.3 / 21.6

torch's index_select + index_copy_ took 8.3 where scattered took 5.6 and runs 5.3 (page_first load, K alone). So runs
win where they are long. Where they are not, each of many calls lets the GIL go and, beside a thread busy in Python,
waits a switch interval to get it back: a random backup took 678 ms in runs (128 calls) against 147 scattered at the
default interval of 5 ms. Hence the threshold is bytes per call, and lies above one page.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hicache_core.errors import ConfigError
from hicache_core.pools.device.base import DevicePool
from hicache_core.pools.host.base import HostPool
from hicache_core.pools.layouts import Placement
from hicache_core.pools.pages import Bytes
from hicache_core.types import Slots

Rows = npt.NDArray[Any]

RUN_BYTES = 512 << 10
"""Bytes per call from which pages are copied run by run."""
TEMPORARY_BYTES = 4 << 20
"""Most bytes that a scattered copy holds in between."""


@dataclass(frozen=True, slots=True)
class Lane:
    """One part of the cache in both pools: [layer, page, …] of rows, and of words."""

    host_rows: Rows
    device_rows: Rows
    host_words: Rows
    device_words: Rows
    page_layer_bytes: int


def lanes_between(host: HostPool, device: DevicePool) -> tuple[Lane, ...]:
    """The lanes of two pools of equal geometry. Raises ConfigError where the CPU cannot address the device pool."""
    arrays = device.byte_arrays()
    if arrays is None:
        raise ConfigError("the CPU cannot address this device pool")
    return tuple(_lane(host, at, arrays[at.part.array]) for at in host.placements)


def _lane(host: HostPool, at: Placement, array: Bytes) -> Lane:
    geometry = host.geometry
    layers, tokens, heads = geometry.layer_num, geometry.page_size, geometry.head_num
    host_shape = [layers, host.num_pages, tokens, heads]
    device_shape = [layers, array.shape[1], tokens, heads]
    host_steps = [at.layer, at.page, at.token, at.head]
    device_steps = list(array.strides[:4])
    row = at.part.row_bytes
    word = _word(row, at.offset, at.part.column, *host_steps, *device_steps)
    for axis, count in ((3, heads), (2, tokens)):
        if count > 1 and not host_steps[axis] == device_steps[axis] == row:
            break
        row *= count
        for numbers in (host_shape, device_shape, host_steps, device_steps):
            numbers.pop()
    flat = array.reshape(-1)

    def views(buffer: Bytes, offset: int, shape: list[int], steps: list[int]) -> tuple[Rows, Rows]:
        rows: Rows = np.ndarray(shape, np.dtype((np.void, row)), buffer.data, offset, steps)
        words: Rows = np.ndarray((*shape, row // word.itemsize), word, buffer.data, offset, (*steps, word.itemsize))
        return rows, words

    host_rows, host_words = views(host.buffer, at.offset, host_shape, host_steps)
    device_rows, device_words = views(flat, at.part.column, device_shape, device_steps)
    return Lane(host_rows, device_rows, host_words, device_words, tokens * heads * at.part.row_bytes)


def _word(*numbers: int) -> np.dtype[Any]:
    """The largest unsigned integer that divides all of these."""
    size = int(np.gcd.reduce([8, *numbers]))
    return np.dtype(f"u{size}")


class CpuCopier:
    """Copier for numpy pools and for torch pools on the CPU. Each call returns with the bytes in place."""

    def __init__(self, host: HostPool, device: DevicePool) -> None:
        self._lanes = lanes_between(host, device)

    def fence(self) -> None:
        """See Copier: nothing runs behind the CPU's back."""

    def backup(self, host_slots: Slots, device_slots: Slots, fence: object | None) -> None:
        """See Copier."""
        order = np.argsort(device_slots, kind="stable")
        into, come = host_slots[order], device_slots[order]
        for lane in self._lanes:
            layers = lane.host_rows.shape[0]
            if _in_runs(into, come, lane.page_layer_bytes * layers):
                for to, at, count in runs(into, come):
                    np.copyto(lane.host_words[:, to : to + count], lane.device_words[:, at : at + count])
            else:
                for part in _pieces(into.size, lane.page_layer_bytes * layers):
                    lane.host_rows[:, into[part]] = lane.device_rows[:, come[part]]

    def load_layer(self, layer: int, host_slots: Slots, device_slots: Slots, fence: object | None) -> None:
        """See Copier."""
        order = np.argsort(device_slots, kind="stable")
        into, come = device_slots[order], host_slots[order]
        for lane in self._lanes:
            if _in_runs(into, come, lane.page_layer_bytes):
                words_to, words_from = lane.device_words[layer], lane.host_words[layer]
                for to, at, count in runs(into, come):
                    np.copyto(words_to[to : to + count], words_from[at : at + count])
            else:
                rows_to, rows_from = lane.device_rows[layer], lane.host_rows[layer]
                for part in _pieces(into.size, lane.page_layer_bytes):
                    rows_to[into[part]] = rows_from[come[part]]

    def finish_load(self) -> None:
        """See Copier: load_layer left nothing to wait for."""

    def wait_event(self, event: object) -> None:
        """See Copier: load_layer gives no events."""


def runs(into: Slots, come: Slots) -> list[tuple[int, int, int]]:
    """Stretches that are consecutive in both arrays, as (first of into, first of come, length)."""
    if not into.size:
        return []
    breaks = np.flatnonzero((np.diff(into) != 1) | (np.diff(come) != 1)) + 1
    starts = np.concatenate(([0], breaks))
    lengths = np.diff(np.concatenate((starts, [into.size])))
    return list(zip(into[starts].tolist(), come[starts].tolist(), lengths.tolist(), strict=True))


def _in_runs(into: Slots, come: Slots, page_bytes: int) -> bool:
    """Whether copying run by run moves enough bytes per call."""
    if page_bytes >= RUN_BYTES or not into.size:
        return True
    count = 1 + int(np.count_nonzero((np.diff(into) != 1) | (np.diff(come) != 1)))
    return into.size * page_bytes >= count * RUN_BYTES


def _pieces(count: int, page_bytes: int) -> list[slice]:
    """Slices of `count` pages, each of at most TEMPORARY_BYTES."""
    step = max(1, TEMPORARY_BYTES // page_bytes)
    return [slice(start, start + step) for start in range(0, count, step)]
