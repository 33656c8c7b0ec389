"""The entry point: `"type": "hicache"` needs no module path. It is the one door that 0.24 to 0.33 have in common."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hicache_core.adapters import vllm_plugin


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory

    known = {name: tier for name, tier in SecondaryTierFactory._registry.items() if name != "hicache"}
    monkeypatch.setattr(SecondaryTierFactory, "_registry", known)
    return known


def test_registering_twice_is_harmless(registry: dict[str, Any]) -> None:
    vllm_plugin.register()
    vllm_plugin.register()
    assert registry["hicache"]().__name__ == "HiCacheTier"


def test_vllm_finds_it_and_the_short_name_works(
    registry: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    start: Callable[..., Any],
    harness: Any,
    tmp_path: Path,
) -> None:
    import vllm.plugins

    (entry,) = importlib.metadata.entry_points(group="vllm.general_plugins", name="hicache")
    assert entry.value == "hicache_core.adapters.vllm_plugin:register"
    for _ in range(2):
        monkeypatch.setattr(vllm.plugins, "plugins_loaded", False)
        monkeypatch.setenv("VLLM_PLUGINS", "hicache")
        vllm.plugins.load_general_plugins()
    engine = start(harness.file_tier(tmp_path))
    assert engine.tier.tier_type == "hicache"
    engine.store([harness.key_of(1)])
    engine.evict()
    assert engine.comes_back(harness.key_of(1))


@pytest.mark.vllm_since(0, 33)
def test_a_module_path_does_without_the_entry_point(start: Callable[..., Any], harness: Any, tmp_path: Path) -> None:
    module = {"type": "HiCacheTier", "module_path": "hicache_core.adapters.vllm"}
    assert type(start(harness.file_tier(tmp_path) | module).tier).__name__ == "HiCacheTier"


def test_the_entry_point_imports_no_storage_and_survives_an_engine_without_tiers() -> None:
    """vLLM calls it in every process and does not catch what it raises."""
    code = (
        "import sys; sys.modules['vllm.v1.kv_offload.tiering.factory'] = None\n"
        "from hicache_core.adapters.vllm_plugin import register; register(); register()\n"
        "print([m for m in sys.modules if m.startswith(('hicache_core.storage', 'hicache_core.adapters.vllm.'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout.strip().splitlines()[-1:]) == (0, ["[]"]), done.stderr
