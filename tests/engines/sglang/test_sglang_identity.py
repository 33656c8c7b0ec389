"""Whose pages are whose: no two deployments that must not share a page have a key in common."""

from __future__ import annotations

import json
import logging
import struct
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hicache_core.errors import ConfigError, OptionError, UnknownNameError

TOKENS = list(range(100, 100 + 16 * 4))


def _model(folder: Path, byte: bytes) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    header = json.dumps({"w": {"dtype": "U8", "shape": [64], "data_offsets": [0, 64]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + byte * 64)
    return folder


def _keys(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*.kv.*") if path.is_file()}


def _file(tmp_path: Path, **more: Any) -> dict[str, Any]:
    return {"backend": "file", "options": {"root": str(tmp_path / "store")}, **more}


def test_two_weights_under_one_name_share_nothing(pools: ModuleType, tmp_path: Path) -> None:
    models = [_model(tmp_path / name / "llama", name.encode()) for name in ("1", "2")]
    seen: list[set[str]] = []
    for model in models:
        door = pools.make_door(_file(tmp_path, model_path=str(model)), pools.mha("page_first"), model_name="llama")
        assert door.batch_exists(pools.hashes(2)) == 0
        assert door.batch_set_v1(pools.hashes(2), pools.tokens([0, 1])) == [True, True]
        door.close()
        seen.append(_keys(tmp_path / "store"))
    assert len(seen[0]) == 2
    assert len(seen[1]) == 4


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"model": "a/b"}, {"model": "a-b"}),
        ({"model": "m", "tenant": "A"}, {"model": "m", "tenant": "B"}),
        ({"model": "m", "tenant": ""}, {"model": "m", "tenant": "A"}),
        ({"model": "m", "weights": "declared:1"}, {"model": "m", "weights": "declared:2"}),
        ({"model": "m", "seal": True}, {"model": "m", "seal": False}),
    ],
)
def test_no_shared_key(
    engine: Callable[..., Any], tmp_path: Path, one: dict[str, Any], other: dict[str, Any]
) -> None:
    """The whole way through SGLang's cache."""
    seen: list[set[str]] = []
    for chosen in (one, other):
        served = engine(_file(tmp_path, **{"weights": "declared:w", **chosen}))
        assert served.prefetch(TOKENS) == 0
        served.compute(TOKENS)
        served.close()
        seen.append(_keys(tmp_path / "store"))
    assert len(seen[0]) == 4
    assert len(seen[1]) == 8


def test_the_served_name_is_the_model_and_the_local_path_gives_the_weights(
    engine: Callable[..., Any], tmp_path: Path
) -> None:
    path = _model(tmp_path / "weights", b"x")
    served = engine(_file(tmp_path), model=str(path), served_as="org/name")
    identity = served.door.session.identity
    assert identity.model == "org/name"
    assert identity.weights.startswith("sampled:")
    served.compute(TOKENS)
    served.forget(TOKENS)
    assert served.prefetch(TOKENS) == len(TOKENS)


# -- mistakes are answered when the engine starts


@pytest.mark.parametrize(
    ("hicache", "error", "said"),
    [
        ({"backend": "fil", "weights": "declared:w"}, UnknownNameError, "did you mean 'file'"),
        ({"backend": "file", "options": {"rot": "/kv"}, "weights": "declared:w"}, OptionError, "did you mean 'root'"),
        ({"backend": "file", "options": {"root": "{tmp}"}}, ConfigError, '"weights": "declared:'),
        ({"backend": "file", "options": {"root": "{tmp}"}, "wieghts": "w"}, OptionError, "did you mean 'weights'"),
        ({"backend": "memory", "weights": "declared:w", "transforms": ["nope"]}, UnknownNameError, "transform"),
    ],
)
def test_bad_configuration_stops_the_engine_with_one_message(
    engine: Callable[..., Any], tmp_path: Path, hicache: dict[str, Any], error: type[Exception], said: str
) -> None:
    text = json.dumps(hicache).replace("{tmp}", str(tmp_path))
    with pytest.raises(error) as caught:
        engine(json.loads(text), model="org/not-here")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_interface_v1_forgotten_is_said_once_at_the_start(
    pools: ModuleType, store: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    pools.make_door(store(), pools.mha("page_first"), v1=False).close()
    told = [record for record in caplog.records if "interface_v1" in record.getMessage()]
    assert len(told) == 1
    assert told[0].levelno == logging.WARNING
    if pools.pool_class("AsymmetricMHATokenToKVPoolHost") is not None:
        with pytest.raises(ConfigError, match='add "interface_v1": 1'):
            pools.make_door(store(), pools.asymmetric("page_first"), v1=False)


def test_a_version_never_tried_is_said_once_at_the_start(
    pools: ModuleType, store: Callable[..., Any], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hicache_core.adapters.untried import warn_of_untried_version
    from hicache_core.plugin import engines

    monkeypatch.setattr(engines.importlib.metadata, "version", lambda _: "9.9.9")
    warn_of_untried_version.cache_clear()  # another test has opened a door in this process
    for _ in range(2):
        pools.make_door(store(), pools.mha("page_first")).close()
    warn_of_untried_version.cache_clear()
    told = [record.getMessage() for record in caplog.records if "9.9.9" in record.getMessage()]
    assert len(told) == 1
    assert "0.5.12, 0.5.15.post1, 0.5.23" in told[0]


def test_a_tried_version_is_not_mentioned(
    pools: ModuleType, store: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    pools.make_door(store(), pools.mha("page_first")).close()
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
