"""Geometries and layouts that tests of pools and of copies share."""

from __future__ import annotations

import pytest

from hicache_core.pools.geometry import KVGeometry
from hicache_core.pools.layouts import LAYOUTS

GEOMETRIES = {
    "mha": KVGeometry("mha", 3, 2, 4, dtype="float32", page_size=4),
    "gqa-one-head": KVGeometry("mha", 2, 1, 8, dtype="bfloat16", page_size=2),
    "one-token-page": KVGeometry("mha", 2, 3, 6, dtype="float16", page_size=1),
    "asymmetric": KVGeometry("mha", 3, 2, 6, v_head_dim=4, dtype="float16", page_size=4),
    "odd-bytes": KVGeometry("mha", 2, 3, 5, v_head_dim=3, dtype="uint8", page_size=2),
    "mla": KVGeometry("mla", 3, 1, 12, rope_dim=4, dtype="bfloat16", page_size=4),
}
COMBINATIONS = [
    pytest.param(geometry, layout, id=f"{name}-{layout}")
    for name, geometry in GEOMETRIES.items()
    for layout, info in LAYOUTS.items()
    if geometry.kind in info.kinds
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes `geometry`, or `geometry` and `layout`, runs for every combination that exists."""
    if {"geometry", "layout"} <= set(metafunc.fixturenames):
        metafunc.parametrize(("geometry", "layout"), COMBINATIONS)
    elif "geometry" in metafunc.fixturenames:
        metafunc.parametrize("geometry", GEOMETRIES.values(), ids=GEOMETRIES)
