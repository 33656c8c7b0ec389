"""What a user is told when LMCache starts, and which configurations work."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hicache_core.errors import HiCacheError
from hicache_core.plugin import engines

Start = Callable[..., Any]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"weights": ""}, "model_path"),
        ({"weights": "some-name"}, "declared:some-name"),
        ({"backend": "fil"}, "did you mean 'file'"),
        ({"options": {"rot": "/x"}}, "root"),
        ({"write_worker": 3}, "did you mean 'write_workers'"),
        ({"url": "file:///x"}, "both backend and url"),
        ({"models": {"a": "declared:1"}}, "one model or several"),
        ({"models": {"a": "/no/such/folder"}, "weights": ""}, "/no/such/folder"),
        ({"model_path": "/no/such/folder", "weights": ""}, "/no/such/folder"),
    ],
)
def test_a_bad_configuration_stops_the_start(
    start: Start, harness: Any, tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    with pytest.raises((HiCacheError, OSError), match=says):
        start(harness.file_params(tmp_path) | changes)


def model_folder(root: Path, seed: int) -> Path:
    root.mkdir(parents=True)
    (root / "config.json").write_text(json.dumps({"model_type": "llama", "seed": seed}))
    header = json.dumps({"w": {"dtype": "U8", "shape": [16], "data_offsets": [0, 16]}}).encode()
    (root / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes([seed] * 16))
    return root


def test_the_readmes_lines_with_a_folder(start: Start, harness: Any, tmp_path: Path) -> None:
    """Equal names, other weights: nothing is shared."""
    folders = [model_folder(tmp_path / f"weights{i}", i) for i in range(2)]
    params = {"backend": "file", "options": {"root": str(tmp_path / "kv")}}
    keys = [harness.key_of(1)]
    first = start({**params, "model_path": str(folders[0])})
    first.store(keys)
    assert start({**params, "model_path": str(folders[0])}).comes_back(keys) == 1
    assert start({**params, "model_path": str(folders[1])}).comes_back(keys) == 0


def test_a_model_that_nobody_spoke_of_is_refused_once(
    start: Start, harness: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = start(harness.file_params(tmp_path))
    server.store([harness.key_of(1)])
    with caplog.at_level(logging.ERROR, "hicache_core.adapters.lmcache"):
        for number in range(3):
            server.store([harness.key_of(number, model="another")])
            assert server.comes_back([harness.key_of(number, model="another")]) == 0
    assert server.failed_stores == 3
    assert [record.message for record in caplog.records if "'another'" in record.message][1:] == []
    assert "'demo/model'" in caplog.text
    assert '"models"' in caplog.text
    named = start(harness.file_params(tmp_path, model="another"))
    assert named.comes_back([harness.key_of(1)]) == 0


def test_this_release_was_tried() -> None:
    found = engines.find_engine("lmcache")
    assert found is not None
    assert found.untried == ""


def test_help_names_every_option() -> None:
    from hicache_core.adapters.lmcache import HiCacheL2AdapterConfig

    text = HiCacheL2AdapterConfig.help()
    for option in ("backend", "options", "url", "weights", "models", "capacity", "hold", "tenant"):
        assert f"- {option} (" in text


def test_the_lines_of_the_guide_are_what_the_door_takes(start: Start, harness: Any, tmp_path: Path) -> None:
    guide = Path(__file__).parents[3] / "docs" / "guides" / "lmcache.md"
    text = guide.read_text(encoding="utf-8")
    told = json.JSONDecoder().raw_decode(text, text.index("--l2-adapter '{") + len("--l2-adapter '"))[0]
    params = told["adapter_params"]
    params["options"]["root"] = str(tmp_path / "kv")
    params["model_path"] = str(model_folder(tmp_path / "weights", 1))
    assert (told["type"], told["module_path"]) == ("plugin", "hicache_core.adapters.lmcache")
    server = start(params)
    assert type(server.adapter).__name__ == told["class_name"]
    server.store([harness.key_of(1)])
    assert server.comes_back([harness.key_of(1)]) == 1
