"""What a user writes for the door, and what is said to what he should have written. Needs no SGLang."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hicache_core.adapters.sglang.config import WHERE, SglangDoorOptions, parse_config
from hicache_core.adapters.sglang.identity import Ranks, model_identity, weights_identity
from hicache_core.adapters.sglang.indices import as_hashes, page_slots, salted
from hicache_core.errors import ConfigError, IdentityError, OptionError

FILE = {"backend": "file", "options": {"root": "/kv"}}


def test_the_documented_forms_are_taken() -> None:
    whole = {
        "backend_name": "hicache",
        "module_path": "hicache_core.adapters.sglang",
        "class_name": "HiCacheDynamicStorage",
        "prefetch_threshold": 256,
        "interface_v1": 1,
        "hicache": {
            **FILE,
            "tenant": "a",
            "timeout": 3.5,
            "seal": False,
            "transforms": ["zstd"],
            "weights": "declared:w",
        },
    }
    config = parse_config(whole)
    assert config.zero_copy
    assert config.options.choice(WHERE) == FILE
    settings = config.options.session_settings()
    assert (settings.timeout, settings.seal, settings.lent_pools, settings.tenant) == (3.5, False, True, "a")
    by_url = parse_config({"hicache": {"url": "file:///kv"}})
    assert not by_url.zero_copy
    assert by_url.options.choice(WHERE) == {"url": "file:///kv"}


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        (None, ["no key 'hicache'", '"backend": "file"']),
        ({"interface_v1": 1}, ["no key 'hicache'"]),
        ({"hi_cache": FILE}, ["'hi_cache'", "did you mean 'hicache'"]),
        ({"hicache": FILE, "interface_v2": 1}, ["'interface_v2'", "did you mean 'interface_v1'"]),
        ({"hicache": FILE, "timeout": 3}, ["'timeout'", "inside"]),
        ({"hicache": "file"}, ["must be a mapping", "str"]),
        ({"hicache": {}}, ["neither backend nor url"]),
        ({"hicache": {**FILE, "url": "file:///kv"}}, ["both backend and url"]),
        ({"hicache": {**FILE, "tennant": "x"}}, ["'tennant'", "did you mean 'tenant'"]),
        ({"hicache": {**FILE, "timeout": "long"}}, ["'timeout'"]),
        ({"hicache": FILE, "interface_v1": "0"}, ["interface_v1", "write 1"]),
    ],
)
def test_a_mistake_is_answered_with_what_to_write(extra: Any, said: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(extra)
    for part in said:
        assert part in str(caught.value)


def test_a_key_for_seals_comes_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(b"0123456789abcdef\n")
    options = SglangDoorOptions(backend="memory", mac_key_file=str(path))
    assert options.session_settings().mac_key == b"0123456789abcdef"
    path.write_bytes(b"short")
    with pytest.raises(ConfigError, match="16 to 64"):
        options.session_settings()
    with pytest.raises(ConfigError, match="cannot be read"):
        SglangDoorOptions(backend="memory", mac_key_file=str(tmp_path / "none")).session_settings()


# -- which weights


def test_unknown_weights_are_refused_with_what_to_add() -> None:
    with pytest.raises(ConfigError) as caught:
        weights_identity(SglangDoorOptions(backend="memory"), {"model_path": "org/model"}, "org/model")
    for part in ("'org/model' is no folder on this machine", '"weights": "declared:', '"model_path"'):
        assert part in str(caught.value)


def test_weights_are_declared_or_sampled_from_local_files(tmp_path: Path) -> None:
    first, second = _model(tmp_path / "a", b"1"), _model(tmp_path / "b", b"2")
    plain = SglangDoorOptions(backend="memory")
    with pytest.raises(IdentityError, match='"weights": "declared:rev7"'):
        weights_identity(SglangDoorOptions(weights="rev7"), {}, "")
    with pytest.raises(IdentityError, match="names no model"):
        weights_identity(plain, {}, "")
    assert weights_identity(SglangDoorOptions(weights="full:ab"), {}, "") == "full:ab"
    seen = weights_identity(plain, {"model_path": str(first)}, "served")
    assert seen.startswith("sampled:")
    assert seen == weights_identity(plain, {}, str(first))
    assert seen == weights_identity(SglangDoorOptions(model_path=str(first)), {"model_path": "org/model"}, "x")
    assert seen != weights_identity(plain, {"model_path": str(second)}, "served")


def test_the_models_name_carries_what_changes_its_numbers() -> None:
    plain = SglangDoorOptions(backend="memory")
    assert model_identity(plain, {"model_path": "/m/llama"}, "") == "llama"
    assert model_identity(SglangDoorOptions(model="own"), {}, "served") == "own"
    assert model_identity(plain, {"quantization": None, "json_model_override_args": "{}"}, "m") == "m"
    assert model_identity(plain, {"quantization": "fp8"}, "m") != "m"
    with pytest.raises(ConfigError, match="no name"):
        model_identity(plain, {}, "")


def _model(folder: Path, byte: bytes) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    header = json.dumps({"w": {"dtype": "U8", "shape": [64], "data_offsets": [0, 64]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + byte * 64)
    return folder


# -- ranks, hashes, indices


def test_a_version_without_the_newer_fields_is_one_rank_of_them() -> None:
    old = SimpleNamespace(tp_rank=1, tp_size=2, pp_rank=0, pp_size=1, is_mla_model=True, model_name="m")
    ranks = Ranks.of(old)
    assert (ranks.writer, ranks.cp_size, ranks.dcp_size, ranks.rank, ranks.world_size) == (False, 1, 1, 1, 2)
    assert Ranks.of(SimpleNamespace(**{**vars(old), "tp_rank": 0})).writer
    assert Ranks.of(SimpleNamespace(**{**vars(old), "is_mla_model": False})).writer
    newer = Ranks.of(SimpleNamespace(**vars(old), is_storage_writer=True, attn_cp_size=2, attn_cp_rank=1))
    assert newer.writer
    assert newer.share == " cp1/2"


def test_token_indices_become_slots() -> None:
    assert page_slots([8, 9, 10, 11, 0, 1, 2, 3], 2, 4).tolist() == [2, 0]
    assert page_slots([5, 3], 2, 1).tolist() == [5, 3]
    assert page_slots([], 0, 4).tolist() == []
    for wrong, said in (
        ([8, 9, 10], "need 4 host indices"),
        ([1, 2, 3, 4], "boundary"),
        ([0, 1, 3, 2], "in a row"),
        ([-4, -3, -2, -1], "below 0"),
    ):
        with pytest.raises(ValueError, match=said):
            page_slots(wrong, 1, 4)


def test_hashes_stay_and_anything_else_becomes_one() -> None:
    good = ["0f" * 32, "a0" * 32]
    assert as_hashes(good) is good
    assert as_hashes([]) == []
    odd = as_hashes([*good, "../x", "A" * 64, "0f " * 21 + "0", "f" * 65])
    assert odd[:2] == good
    assert len(set(odd)) == 6
    assert all(len(one) == 64 and set(one) <= set("0123456789abcdef") for one in odd)
    assert salted(good, b"1") != salted(good, b"2")
    assert all(len(one) == 64 for one in salted(good, b"1"))


def test_option_errors_are_config_errors() -> None:
    with pytest.raises(OptionError):
        parse_config({"hicache": {"backend": 3}})
