"""The oracle of the layouts: one row at a time, from the shapes as the field writes them. Slow, and only for tests.

It shares no arithmetic with `layouts`: every offset is the position in a literal shape.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from hicache_core.pools.geometry import KVGeometry
from hicache_core.pools.pages import Bytes


def part_rows(geometry: KVGeometry, layout: str) -> list[int]:
    """Bytes of a row of each part."""
    size = geometry.itemsize
    if geometry.kind == "mha":
        return [geometry.head_dim * size, geometry.value_dim * size]
    if layout == "page_first_kv_split":
        rope = geometry.rope_dim or 0
        return [(geometry.head_dim - rope) * size, rope * size]
    return [geometry.head_dim * size]


def row_offset(
    geometry: KVGeometry, layout: str, num_pages: int, part: int, page: int, layer: int, token: int, head: int
) -> int:
    """Byte offset in the pool of the row of `part` for (page, layer, token in page, head)."""
    layers, heads, size = geometry.layer_num, geometry.head_num, geometry.page_size
    tokens = num_pages * size
    shape, index = {
        "layer_first": ((layers, tokens, heads), (layer, page * size + token, head)),
        "page_first": ((tokens, layers, heads), (page * size + token, layer, head)),
        "page_first_direct": ((num_pages, layers, size, heads), (page, layer, token, head)),
        "page_head": ((num_pages, heads, size, layers), (page, head, token, layer)),
        "page_first_kv_split": ((num_pages, layers, size, heads), (page, layer, token, head)),
    }[layout]
    rows = part_rows(geometry, layout)
    start = 0
    for row in rows[:part]:
        start += row * math.prod(shape)
        if len(set(rows)) > 1 or layout == "page_first_kv_split":
            start = (start + 4095) // 4096 * 4096
    position = 0
    for extent, at in zip(shape, index, strict=True):
        position = position * extent + at
    return start + position * rows[part]


def page_rows(geometry: KVGeometry, layout: str) -> Iterator[tuple[int, int, int, int]]:
    """(part, layer, token, head) of every row of a page, in the order of the page's flat bytes."""
    parts = range(len(part_rows(geometry, layout)))
    layers, tokens, heads = range(geometry.layer_num), range(geometry.page_size), range(geometry.head_num)
    if layout == "layer_first":
        for layer, part, token, head in itertools.product(layers, parts, tokens, heads):
            yield part, layer, token, head
    elif layout == "page_first":
        for part, token, layer, head in itertools.product(parts, tokens, layers, heads):
            yield part, layer, token, head
    elif layout == "page_head":
        for part, head, token, layer in itertools.product(parts, heads, tokens, layers):
            yield part, layer, token, head
    else:
        for part, layer, token, head in itertools.product(parts, layers, tokens, heads):
            yield part, layer, token, head


def flat_page(geometry: KVGeometry, layout: str, num_pages: int, pool: Bytes, page: int) -> bytes:
    """The flat bytes of a page of a host pool given as its bytes."""
    rows = part_rows(geometry, layout)
    pieces = []
    for part, layer, token, head in page_rows(geometry, layout):
        at = row_offset(geometry, layout, num_pages, part, page, layer, token, head)
        pieces.append(pool[at : at + rows[part]].tobytes())
    return b"".join(pieces)


def device_row(geometry: KVGeometry, layout: str, part: int) -> tuple[int, int]:
    """(device array, first byte inside its row) that `part` of the host comes from."""
    if layout == "page_first_kv_split":
        return 0, 0 if part == 0 else part_rows(geometry, layout)[0]
    return part, 0


def backup(
    geometry: KVGeometry, layout: str, num_pages: int, pool: Bytes, arrays: tuple[Bytes, ...], host: int, device: int
) -> None:
    """Copy page `device` of device arrays [layer, page, token, head, row] to page `host` of the pool's bytes."""
    rows = part_rows(geometry, layout)
    for part, layer, token, head in page_rows(geometry, layout):
        array, column = device_row(geometry, layout, part)
        at = row_offset(geometry, layout, num_pages, part, host, layer, token, head)
        pool[at : at + rows[part]] = arrays[array][layer, device, token, head, column : column + rows[part]]


def load_layer(
    geometry: KVGeometry,
    layout: str,
    num_pages: int,
    pool: Bytes,
    arrays: tuple[Bytes, ...],
    host: int,
    device: int,
    layer: int,
) -> None:
    """The inverse of backup, one layer."""
    rows = part_rows(geometry, layout)
    for part, its_layer, token, head in page_rows(geometry, layout):
        if its_layer == layer:
            array, column = device_row(geometry, layout, part)
            at = row_offset(geometry, layout, num_pages, part, host, layer, token, head)
            arrays[array][layer, device, token, head, column : column + rows[part]] = pool[at : at + rows[part]]
