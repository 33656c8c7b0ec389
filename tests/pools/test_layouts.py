from __future__ import annotations

import itertools

import numpy as np
import pytest

from hicache_core.errors import ConfigError, UnknownNameError
from hicache_core.pools import naive
from hicache_core.pools.geometry import KVGeometry
from hicache_core.pools.layouts import (
    LAYOUTS,
    buffer_shape,
    check_layout,
    layout_named,
    placements,
    pool_nbytes,
    region_table,
)

PAGES = 5


def test_every_row_lies_where_the_literal_shape_puts_it(geometry, layout):
    info = layout_named(layout)
    seen = set()
    for part, at in enumerate(placements(geometry, info, PAGES)):
        for page, layer, token, head in itertools.product(
            range(PAGES), range(geometry.layer_num), range(geometry.page_size), range(geometry.head_num)
        ):
            start = at.offset + page * at.page + layer * at.layer + token * at.token + head * at.head
            assert start == naive.row_offset(geometry, layout, PAGES, part, page, layer, token, head)
            span = set(range(start, start + at.part.row_bytes))
            assert not span & seen
            seen |= span
    assert len(seen) == PAGES * geometry.page_nbytes
    assert max(seen) < pool_nbytes(geometry, info, PAGES)


def test_regions_are_the_page_in_order(geometry, layout):
    info = layout_named(layout)
    table = region_table(geometry, info, PAGES)
    starts = table.starts(np.array([3, 0, 3]))
    assert starts.shape == (3, table.size.size)
    assert (starts[0] == starts[2]).all()
    for row, page in ((0, 3), (1, 0)):
        regions = [
            byte
            for start, size in zip(starts[row].tolist(), table.size.tolist(), strict=True)
            for byte in range(start, start + size)
        ]
        rows = naive.part_rows(geometry, layout)
        want = [
            byte
            for part, layer, token, head in naive.page_rows(geometry, layout)
            for at in [naive.row_offset(geometry, layout, PAGES, part, page, layer, token, head)]
            for byte in range(at, at + rows[part])
        ]
        assert regions == want


@pytest.mark.parametrize(
    ("layout", "mha", "mla"),
    [
        ("layer_first", 2 * 3, 3),
        ("page_first", 2, 1),
        ("page_first_direct", 2, 1),
        ("page_head", 2, None),
        ("page_first_kv_split", None, 2),
    ],
)
def test_region_counts_are_the_fields(layout, mha, mla):
    geometries = {
        "mha": KVGeometry("mha", 3, 2, 4, page_size=4),
        "mla": KVGeometry("mla", 3, 1, 12, rope_dim=4, page_size=4),
    }
    for kind, want in (("mha", mha), ("mla", mla)):
        if want is None:
            with pytest.raises(ConfigError, match=r"use page_first"):
                region_table(geometries[kind], layout_named(layout), PAGES)
        else:
            assert region_table(geometries[kind], layout_named(layout), PAGES).size.size == want


def test_shapes_are_the_fields():
    mha = KVGeometry("mha", 3, 2, 8, page_size=4)
    shapes = {name: buffer_shape(mha, LAYOUTS[name], 5) for name in LAYOUTS if "mha" in LAYOUTS[name].kinds}
    assert shapes == {
        "layer_first": ((3, 20, 2, 8),) * 2,
        "page_first": ((20, 3, 2, 8),) * 2,
        "page_first_direct": ((5, 3, 4, 2, 8),) * 2,
        "page_head": ((5, 2, 4, 3, 8),) * 2,
    }
    mla = KVGeometry("mla", 3, 1, 12, rope_dim=4, page_size=4)
    assert buffer_shape(mla, LAYOUTS["page_first_kv_split"], 5) == ((5, 3, 4, 1, 8), (5, 3, 4, 1, 4))


def test_equal_parts_are_one_array_and_unequal_ones_are_aligned():
    equal = KVGeometry("mha", 3, 2, 8, page_size=4)
    assert placements(equal, LAYOUTS["page_first"], 5)[1].offset == 5 * equal.page_nbytes // 2
    unequal = KVGeometry("mha", 3, 2, 8, v_head_dim=4, page_size=4)
    assert placements(unequal, LAYOUTS["page_first"], 5)[1].offset % 4096 == 0


def test_split_needs_to_know_where_the_latent_ends():
    with pytest.raises(ConfigError, match="needs rope_dim"):
        check_layout(KVGeometry("mla", 3, 1, 12), LAYOUTS["page_first_kv_split"])


def test_an_unknown_layout_names_the_nearest():
    with pytest.raises(UnknownNameError, match="did you mean 'page_first'"):
        layout_named("page_frist")
