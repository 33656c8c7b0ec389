"""The real model, once: sensible text, and its KV back from a store."""

from __future__ import annotations

from pathlib import Path

import hicache_engine
import pytest
import torch
from hicache_engine.errors import ModelFileError
from hicache_engine.loading import load_model, smollm2_path
from hicache_engine.sampling import SamplingParams
from hicache_engine.settings import EngineOptions

from hicache_core.config.model import HiCacheConfig

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def smollm2():
    try:
        smollm2_path()
    except ModelFileError as error:
        pytest.skip(str(error))
    return load_model("smollm2")


def engine(model, root: Path):
    cache = HiCacheConfig(
        enable_hierarchical_cache=True,
        page_size=16,
        hicache_storage_backend="file",
        hicache_storage_backend_options={"root": str(root)},
        hicache_storage_prefetch_policy="wait_complete",
        prefetch_threshold=16,
    )
    return EngineOptions(cache=cache, device_tokens=1024, chunk=128).build(model)


def test_it_answers_sensibly_and_the_same_from_stored_pages(smollm2, tmp_path):
    tokenizer = smollm2.tokenizer
    text = (Path(hicache_engine.__file__).parent / "prompt.txt").read_text()[:1500]
    long = tokenizer.render([{"role": "user", "content": text + "\n\nWho kept the lighthouse?"}])
    short = tokenizer.render([{"role": "user", "content": "What is the capital of France?"}])
    params = SamplingParams(max_tokens=12)
    with engine(smollm2, tmp_path) as first:
        paris, cold = (first.generate([prompt], params, keep_logits=True)[0] for prompt in (short, long))
        assert first.cache.drain(60)
    assert "Paris" in paris.text
    boundary = cold.usage.prompt_tokens // 128 * 128
    with engine(smollm2, tmp_path) as second:
        (warm,) = second.generate([long], params, keep_logits=True, reuse_limit=boundary)
    assert warm.usage.storage == boundary
    assert torch.equal(cold.logits, warm.logits)
    assert cold.text == warm.text
    with engine(smollm2, tmp_path) as third:
        (warm,) = third.generate([long], params, keep_logits=True)
    assert warm.usage.storage > boundary
    assert (cold.logits - warm.logits).abs().max() <= 1e-3
    assert cold.text == warm.text
