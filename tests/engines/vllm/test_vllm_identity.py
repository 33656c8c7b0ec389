"""What shares pages and what does not, and what a wrong configuration is told when the engine starts."""

from __future__ import annotations

import json
import logging
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hicache_core.errors import ConfigError, HiCacheError, IdentityError, OptionError, UnknownNameError

Start = Callable[..., Any]

since = pytest.mark.vllm_since
TP2 = {"tp_size": 2, "world_size": 2}


def shared(start: Start, harness: Any, root: Path, one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether what one engine stored is found by the other. "tier": changes of its tier; others: of the engine."""
    key = harness.key_of(1)
    first = start(harness.file_tier(root, **one.pop("tier", {})), **one)
    first.store([key])
    first.shut_down()
    second = start(harness.file_tier(root, **other.pop("tier", {})), **other)
    found: bool = second.comes_back(key)
    second.shut_down()
    return found


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"tier": {"weights": "declared:a"}}, {"tier": {"weights": "declared:b"}}),
        ({"tier": {"tenant": "A"}}, {"tier": {"tenant": "B"}}),
        ({"tier": {"tenant": ""}}, {"tier": {"tenant": "B"}}),
        ({"model": "a/b"}, {"model": "a-b"}),
        ({"dtype": "float16"}, {"dtype": "fp8_e4m3"}),
        ({"groups": ((16, ("layer0",)),)}, {"groups": ((16, ("layer0", "layer1")),)}),
        ({"groups": ((16, ("layer0",)),)}, {"groups": ((32, ("layer0",)),)}),
        ({"parallel": TP2}, {}),
        pytest.param({"kv_cache_layout": "LBNHC"}, {"kv_cache_layout": "LBHNC"}, marks=since(0, 33)),
        pytest.param({"replicated": True, "parallel": TP2}, {"parallel": TP2}, marks=since(0, 27)),
    ],
    ids=["weights", "tenants", "no-tenant", "names", "dtype", "layers", "block", "tp", "byte-order", "copies"],
)
def test_what_differs_is_a_miss(
    one: dict[str, Any], other: dict[str, Any], start: Start, harness: Any, tmp_path: Path
) -> None:
    assert not shared(start, harness, tmp_path, dict(one), dict(other))
    assert not shared(start, harness, tmp_path / "again", dict(other), dict(one))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({}, {}),
        (
            {"model": "served-a", "tier": {"model": "the model"}},
            {"model": "served-b", "tier": {"model": "the model"}},
        ),
        pytest.param(
            {"parallel": {"is_parallelism_agnostic": True}},
            {"parallel": {**TP2, "is_parallelism_agnostic": True}},
            marks=since(0, 27),
        ),
        ({"parallel": {"data_parallel_index": 0}}, {"parallel": {"data_parallel_index": 1}}),
        ({"tier": {"timeout": 1.0}}, {"tier": {"read_workers": 7, "hold": 1.0}}),
    ],
    ids=["equal", "one-id-two-paths", "portable-bytes", "replicas", "mere-settings"],
)
def test_what_is_alike_is_shared(
    one: dict[str, Any], other: dict[str, Any], start: Start, harness: Any, tmp_path: Path
) -> None:
    assert shared(start, harness, tmp_path, one, other)


def model_folder(path: Path, fill: int) -> Path:
    """The least that is a model: a config and a safetensors file."""
    path.mkdir(parents=True)
    (path / "config.json").write_text('{"model_type": "demo"}')
    header = json.dumps({"w": {"dtype": "U8", "shape": [64], "data_offsets": [0, 64]}}).encode()
    (path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes([fill]) * 64)
    return path


def test_two_folders_of_one_name_with_other_weights_share_nothing(start: Start, harness: Any, tmp_path: Path) -> None:
    models = [str(model_folder(tmp_path / place / "demo", fill)) for place, fill in (("x", 1), ("y", 2), ("z", 1))]
    tier = {"weights": "", "model": "demo"}
    for other, found in ((1, False), (2, True)):
        one, two = ({"tier": dict(tier), "model": models[i]} for i in (0, other))
        assert shared(start, harness, tmp_path / str(other), one, two) is found


def test_weights_are_sampled_where_the_model_is_a_folder(start: Start, harness: Any, tmp_path: Path) -> None:
    model = model_folder(tmp_path / "demo", 1)
    engine = start(harness.file_tier(tmp_path / "a", weights=""), model=str(model))
    named = start(harness.file_tier(tmp_path / "b", weights="", model_path=str(model)), model="org/demo")
    assert engine.tier.session.identity.weights.startswith("sampled:")
    assert engine.tier.session.identity.weights == named.tier.session.identity.weights


def test_hashes_of_any_length_make_legal_keys() -> None:
    from hicache_core.adapters.vllm.identity import by_pool, page_hashes

    long, short = b"\xab" * 32 + bytes(4), b"\xab" * 16 + bytes(4)
    assert page_hashes([long]) == ["ab" * 32]
    (made,) = page_hashes([short])
    assert len(made) == 64
    assert made != "ab" * 32
    tails = [bytes(3) + bytes([group]) for group in (0, 2, 0, 300 % 256)]
    assert by_pool([b"h" + tail for tail in tails]) == [("kv", [0, 2]), ("kv_group2", [1]), ("kv_group44", [3])]
    assert by_pool([]) == []


@pytest.mark.parametrize(
    ("change", "kind", "told"),
    [
        ({"weights": ""}, IdentityError, ("demo-model", "model_path", '"weights": "declared:')),
        ({"weights": "v1"}, IdentityError, ('"weights": "declared:v1"',)),
        ({"backend": "flie"}, UnknownNameError, ("flie", "did you mean 'file'")),
        ({"backend": ""}, ConfigError, ("neither backend nor url", "file:///")),
        ({"url": "file:///x"}, ConfigError, ("both backend and url",)),
        ({"options": {"rot": "/x"}}, OptionError, ("rot", "root")),
        ({"timout": 3}, OptionError, ("timout", "timeout", "secondary_tiers")),
        ({"timeout": -3}, OptionError, ("timeout",)),
        ({"locality": "NEAR"}, OptionError, ("locality", "LOCAL")),
        ({"read_workers": 0}, OptionError, ("read_workers",)),
        ({"mac_key_file": "/nowhere/key"}, ConfigError, ("/nowhere/key",)),
        ({"weights": "", "model_path": "/nowhere"}, ConfigError, ("/nowhere", "does not exist")),
    ],
)
def test_a_wrong_configuration_is_told_when_the_engine_starts(
    change: dict[str, Any],
    kind: type[HiCacheError],
    told: tuple[str, ...],
    start: Start,
    harness: Any,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(kind) as raised:
        start(harness.file_tier(tmp_path) | change)
    for part in told:
        assert part in str(raised.value)
    assert "mapped" not in caplog.text


def test_random_hashes_are_warned_of(
    start: Start, tier_config: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from vllm.v1.core import kv_cache_utils

    from hicache_core.adapters.vllm import engine

    def told() -> bool:
        engine.warn_of_random_hashes.cache_clear()
        caplog.clear()
        start(tier_config).shut_down()
        return "PYTHONHASHSEED" in caplog.text

    monkeypatch.setenv("PYTHONHASHSEED", "0")
    assert not told()
    monkeypatch.delenv("PYTHONHASHSEED")
    assert told() is not hasattr(kv_cache_utils, "DEFAULT_NONE_HASH_SEED")
    monkeypatch.delattr(kv_cache_utils, "DEFAULT_NONE_HASH_SEED", raising=False)
    assert told()


def test_a_release_that_was_never_tried_is_warned_of_once(
    start: Start, tier_config: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import vllm

    monkeypatch.setenv("PYTHONHASHSEED", "0")

    def warnings(version: str) -> list[str]:
        monkeypatch.setattr(vllm, "__version__", version)
        caplog.clear()
        start(tier_config).shut_down()
        return [
            r.getMessage() for r in caplog.records if r.name.startswith("hicache") and r.levelno >= logging.WARNING
        ]

    (told,) = warnings("0.41.2")
    assert "0.41.2" in told
    assert "0.33.0" in told
    assert warnings("0.33.0") == warnings("0.33.0+cu130") == warnings("0.27.0") == []
