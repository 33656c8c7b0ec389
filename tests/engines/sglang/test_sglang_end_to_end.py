"""L1 → L2 → L3 and back through SGLang's own tree, controller and host pool."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

STORES = ("file", "mooncake", "s3")
LAYOUTS = ("page_first", "page_first_direct", "layer_first", "page_head")
TOKENS = list(range(5000, 5000 + 16 * 12))
PAGES = 12


@pytest.mark.parametrize("core", ["rust", "python"])
@pytest.mark.parametrize("v1", [True, False], ids=["v1", "generic"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("store", STORES, indirect=True)
def test_pages_come_back_after_both_tiers_were_evicted(
    stack: ModuleType, engine: Callable[..., Any], store: Callable[..., Any], layout: str, v1: bool, core: str
) -> None:
    served = engine(store(), layout=layout, v1=v1, core=core)
    made = served.compute(TOKENS)
    served.forget(TOKENS)
    assert served.prefetch(TOKENS) == len(TOKENS)
    assert stack.equal(served.load(TOKENS), made, PAGES)


@pytest.mark.parametrize("store", STORES, indirect=True)
def test_a_restarted_server_finds_what_the_other_path_stored(
    stack: ModuleType, engine: Callable[..., Any], store: Callable[..., Any]
) -> None:
    hicache = store()
    for layout in ("page_first", "layer_first"):
        first = engine(hicache, layout=layout, v1=True)
        made = first.compute(TOKENS)
        first.close()
        second = engine(hicache, layout=layout, v1=False)
        assert second.prefetch(TOKENS) == len(TOKENS)
        assert stack.equal(second.load(TOKENS), made, PAGES)
        second.close()


@pytest.mark.parametrize("store", STORES, indirect=True)
@pytest.mark.parametrize("v1", [True, False], ids=["v1", "generic"])
def test_another_layout_over_the_same_store_misses(
    stack: ModuleType, engine: Callable[..., Any], store: Callable[..., Any], v1: bool
) -> None:
    hicache = store()
    for number, layout in enumerate(("layer_first", "page_first", "page_first_direct", "page_head")):
        served = engine(hicache, layout=layout, v1=v1)
        assert served.prefetch(TOKENS) == 0
        made = served.compute(TOKENS, seed=number)  # the recomputation
        served.forget(TOKENS)
        assert served.prefetch(TOKENS) == len(TOKENS)
        assert stack.equal(served.load(TOKENS), made, PAGES)
        served.close()


def test_a_longer_prompt_finds_its_stored_prefix(
    stack: ModuleType, engine: Callable[..., Any], store: Callable[..., Any]
) -> None:
    served = engine(store())
    made = served.compute(TOKENS)
    served.forget(TOKENS)
    longer = [*TOKENS, *range(16 * 4)]
    assert served.prefetch(longer) == len(TOKENS)
    assert stack.equal(served.load(longer), made, PAGES)


def test_clear_empties_this_servers_namespace_and_no_other(
    engine: Callable[..., Any], store: Callable[..., Any]
) -> None:
    other = engine(store(tenant="other"))
    other.compute(TOKENS)
    other.close()
    served = engine(store())
    served.compute(TOKENS)
    served.forget(TOKENS)
    assert served.controller.clear_storage_backend()
    assert served.prefetch(TOKENS) == 0
    served.close()
    other = engine(store(tenant="other"))
    assert other.prefetch(TOKENS) == len(TOKENS)


def test_stats_are_sglangs_own_and_are_handed_out_once(engine: Callable[..., Any], store: Callable[..., Any]) -> None:
    served = engine(store())
    served.compute(TOKENS)
    served.forget(TOKENS)
    served.prefetch(TOKENS)
    stats = served.door.get_stats()
    assert type(stats).__name__ == "StorageMetrics"
    assert type(stats).__module__.startswith("sglang.")
    assert (stats.backup_pgs, stats.prefetch_pgs) == ([PAGES], [PAGES])
    assert len(stats.backup_bandwidth) == len(stats.prefetch_bandwidth) == 1
    assert min(stats.backup_bandwidth + stats.prefetch_bandwidth) > 0
    again = served.door.get_stats()
    assert (again.backup_pgs, again.prefetch_pgs) == ([], [])
