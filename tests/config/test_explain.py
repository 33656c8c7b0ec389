"""Every setting is explained: its value, where it came from, what it replaced; no secret is shown."""

from __future__ import annotations

from hicache_core.config.explain import explain
from hicache_core.config.load import resolve
from hicache_core.config.names import FIELDS


def test_explain_tells_value_source_and_correction() -> None:
    flags = {
        "enable_hierarchical_cache": True,
        "hicache_storage_backend": "disk",
        "hicache_io_backend": "direct",
        "hicache_storage_backend_extra_config": {"secret_key": "hunter2", "depth": 3},
    }
    rows = {row.name: row for row in explain(resolve(flags, env={"HICACHE_PAGE_SIZE": "32"}))}
    assert set(FIELDS) - {"hicache_storage_backend_options"} <= set(rows)
    assert (rows["page_size"].value, rows["page_size"].source) == (32, "environment HICACHE_PAGE_SIZE")
    assert (rows["page_size"].flag, rows["page_size"].variable) == ("--page-size", "HICACHE_PAGE_SIZE")
    layout = rows["hicache_mem_layout"]
    assert (layout.value, layout.source, layout.overridden) == (
        "page_first_direct",
        "correction",
        ("page_first (default)",),
    )
    assert "one piece" in layout.correction
    assert (rows["backend.depth"].value, rows["backend.root"].source) == (3, "default")
    assert rows["backend.secret_key"].value == "***"
    assert "hunter2" not in str(rows)


def test_explain_hides_the_password_of_a_url() -> None:
    flags = {"enable_hierarchical_cache": True, "hicache_storage_backend": "disk://?secret_key=hunter2&depth=2"}
    rows = {row.name: row for row in explain(resolve(flags, env={}))}
    assert "hunter2" not in str(rows)
    assert (rows["backend.depth"].value, rows["backend.depth"].source) == (2, "url")
