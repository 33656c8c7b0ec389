"""Where the bytes of a page lie in each of the five host layouts: integer maths, no memory.

A layout is an order of axes for every part of the cache (K and V; or the one MLA vector; or its latent and its
rope). Parts follow one another in the pool's buffer, as in the field's shapes:

    layer_first            [2, layer, token, head, dim]              1 region per part and layer
    page_first             [2, token, layer, head, dim]              1 region per part
    page_first_direct      [2, page, layer, page_size, head, dim]    1 region per part
    page_head              [2, page, head, page_size, layer, dim]    1 region per part; MHA only
    page_first_kv_split    latent and rope apart, each [page, layer, page_size, 1, dim]; MLA only

Regions of a page are in the order of these shapes, layer before part in layer_first (layer 0's K, layer 0's V,
layer 1's K, …: the order in which SGLang hands a page out). A page's flat bytes are its regions in that order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hicache_core.errors import ConfigError, UnknownNameError
from hicache_core.pools.geometry import Kind, KVGeometry

PART_ALIGNMENT = 4096
"""Bytes that parts of unequal size start on a multiple of, so that V of an asymmetric pool suits O_DIRECT too."""


@dataclass(frozen=True, slots=True)
class Layout:
    """One byte order. `axes` is outermost first: l layer, n page, p token in page, h head; the row comes last."""

    name: str
    axes: str
    kinds: tuple[Kind, ...]
    splits_latent: bool = False
    whole_pages: bool = False
    """Whether a page's tokens of one layer are one run of bytes: what io backend `direct` needs."""


LAYOUTS: dict[str, Layout] = {
    layout.name: layout
    for layout in (
        Layout("layer_first", "lnph", ("mha", "mla"), whole_pages=True),
        Layout("page_first", "nplh", ("mha", "mla")),
        Layout("page_first_direct", "nlph", ("mha", "mla"), whole_pages=True),
        Layout("page_head", "nhpl", ("mha",)),
        Layout("page_first_kv_split", "nlph", ("mla",), splits_latent=True),
    )
}
"""The five layouts by name."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the cache as the host keeps it. `array` is the device array it comes from (0 K or MLA, 1 V)."""

    name: str
    row_bytes: int
    array: int
    column: int = 0
    """First byte of the part inside a row of the device array."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Byte offset and strides of one part: element (page, layer, token, head) starts at offset + the products."""

    part: Part
    offset: int
    page: int
    layer: int
    token: int
    head: int


@dataclass(frozen=True, slots=True)
class RegionTable:
    """Region r of page slot s is the bytes [offset[r] + s * stride[r], … + size[r]); all int64[regions]."""

    offset: npt.NDArray[np.int64]
    stride: npt.NDArray[np.int64]
    size: npt.NDArray[np.int64]

    def starts(self, slots: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Byte offsets in the pool's buffer: int64[n, regions]."""
        return self.offset + slots[:, None] * self.stride


def layout_named(name: str) -> Layout:
    """The layout of that name; UnknownNameError (with the nearest) where there is none."""
    try:
        return LAYOUTS[name]
    except KeyError:
        raise UnknownNameError("host layout", name, LAYOUTS) from None


def check_layout(geometry: KVGeometry, layout: Layout) -> None:
    """Refuse a layout that this geometry cannot have. Raises ConfigError with what to take instead."""
    if geometry.kind not in layout.kinds:
        why = "it separates latent and rope" if layout.splits_latent else "MLA has no heads to group by"
        raise ConfigError(
            f"layout {layout.name!r} is for {', '.join(layout.kinds).upper()} pools ({why}); this pool is "
            f"{geometry.kind.upper()}: use page_first or page_first_direct"
        )
    if layout.splits_latent and geometry.rope_dim is None:
        raise ConfigError(f"layout {layout.name!r} needs rope_dim in the geometry to know where the latent ends")


def parts_of(geometry: KVGeometry, layout: Layout) -> tuple[Part, ...]:
    """The parts in the order in which they follow one another."""
    check_layout(geometry, layout)
    rows = geometry.row_bytes
    if geometry.kind == "mha":
        return (Part("k", rows[0], 0), Part("v", rows[1], 1))
    if not layout.splits_latent or geometry.rope_dim is None:
        return (Part("kv", rows[0], 0),)
    rope = geometry.rope_dim * geometry.itemsize
    return (Part("latent", rows[0] - rope, 0), Part("rope", rope, 0, rows[0] - rope))


def placements(geometry: KVGeometry, layout: Layout, num_pages: int) -> tuple[Placement, ...]:
    """Where each part lies in a buffer of `num_pages` pages."""
    counts = {"l": geometry.layer_num, "n": num_pages, "p": geometry.page_size, "h": geometry.head_num}
    placed, offset = [], 0
    for part in parts_of(geometry, layout):
        strides, step = {}, part.row_bytes
        for axis in reversed(layout.axes):
            strides[axis] = step
            step *= counts[axis]
        placed.append(Placement(part, offset, strides["n"], strides["l"], strides["p"], strides["h"]))
        offset = _next_part(geometry, layout, offset + step)
    return tuple(placed)


def _next_part(geometry: KVGeometry, layout: Layout, end: int) -> int:
    """Equal parts are adjacent (one [2, …] array); unequal ones start on a page boundary."""
    if not geometry.asymmetric and not layout.splits_latent:
        return end
    return -(-end // PART_ALIGNMENT) * PART_ALIGNMENT


def pool_nbytes(geometry: KVGeometry, layout: Layout, num_pages: int) -> int:
    """Bytes of a host pool of `num_pages` pages."""
    last = placements(geometry, layout, num_pages)[-1]
    return last.offset + num_pages * geometry.page_size * geometry.layer_num * geometry.head_num * last.part.row_bytes


def region_table(geometry: KVGeometry, layout: Layout, num_pages: int) -> RegionTable:
    """Offsets, strides per slot, and sizes of the regions of a page, in region order."""
    placed = placements(geometry, layout, num_pages)
    tokens = geometry.page_size * geometry.head_num
    if layout.axes.startswith("n"):
        rows = [(at.offset, at.page, tokens * geometry.layer_num * at.part.row_bytes) for at in placed]
    else:
        rows = [
            (at.offset + layer * at.layer, at.page, tokens * at.part.row_bytes)
            for layer in range(geometry.layer_num)
            for at in placed
        ]
    table = np.array(rows, dtype=np.int64)
    return RegionTable(table[:, 0].copy(), table[:, 1].copy(), table[:, 2].copy())


def buffer_shape(geometry: KVGeometry, layout: Layout, num_pages: int) -> tuple[tuple[int, ...], ...]:
    """Shape in elements of each part's array as the field writes it (token axis joined where page is next to it)."""
    counts = {"l": geometry.layer_num, "n": num_pages, "p": geometry.page_size, "h": geometry.head_num}
    axes = layout.axes
    shape = [counts[axis] for axis in axes]
    if "np" in axes:
        at = axes.index("np")
        shape[at : at + 2] = [num_pages * geometry.page_size]
    return tuple((*shape, part.row_bytes // geometry.itemsize) for part in parts_of(geometry, layout))
