from __future__ import annotations

import numpy as np
import pytest
import torch
from hicache_engine.model import Llama, LlamaConfig, random_weights
from hicache_engine.paged import Segment

from hicache_core.pools.device.torch_pool import TorchDevicePool
from hicache_core.pools.geometry import KVGeometry

CONFIG = LlamaConfig(layers=3, dim=64, heads=4, kv_heads=2, ffn=128, vocab=257, context=1024)
PAGE, CHUNK = 8, 32
LLAMA = Llama(CONFIG, random_weights(CONFIG, seed=3))
TOKENS = np.random.default_rng(5).integers(0, 257, 150).astype(np.uint32)


def new_pool(pages: int = 64, dtype: str = "float32") -> TorchDevicePool:
    return TorchDevicePool(
        KVGeometry("mha", CONFIG.layers, CONFIG.kv_heads, CONFIG.head_dim, dtype=dtype, page_size=PAGE), pages
    )


def slots(seed: int, pages: int = 20) -> np.ndarray:
    return np.random.default_rng(seed).permutation(64)[:pages].astype(np.int64)


def prefill(pool, where, *, start=0, chunk=CHUNK, tokens=TOKENS, llama=LLAMA):
    at, logits = start, None
    while at < len(tokens):
        end = min(len(tokens), (at // chunk + 1) * chunk)
        logits = llama.forward([Segment(tokens[at:end], at, where)], pool)
        at = end
    return logits[0]


def moved(pool, where, other, count):
    """Another pool that holds the first `count` pages elsewhere."""
    copy = new_pool()
    copy.write_pages(other[:count], pool.read_pages(where[:count]))
    return copy


def test_chunked_equals_unchunked():
    cold = prefill(new_pool(), slots(1))
    whole = prefill(new_pool(), slots(2), chunk=10_000)
    assert (cold - whole).abs().max() <= 1e-3
    assert cold.argmax() == whole.argmax()


def test_resuming_at_a_chunk_boundary_is_bit_equal():
    pool, where = new_pool(), slots(1)
    cold = prefill(pool, where)
    for boundary in range(CHUNK, len(TOKENS), CHUNK):
        warm = prefill(moved(pool, where, slots(boundary), boundary // PAGE), slots(boundary), start=boundary)
        assert torch.equal(cold, warm), boundary


def test_resuming_elsewhere_agrees_closely():
    pool, where = new_pool(), slots(1)
    cold = prefill(pool, where)
    for start in range(PAGE, len(TOKENS), PAGE):
        warm = prefill(moved(pool, where, slots(start), start // PAGE), slots(start), start=start)
        assert (cold - warm).abs().max() <= 1e-3
        assert cold.argmax() == warm.argmax()


def test_a_damaged_page_changes_the_logits():
    pool, where = new_pool(), slots(1)
    cold = prefill(pool, where)
    other = moved(pool, where, where, 16)
    page = other.read_pages(where[3:4])
    other.write_pages(where[3:4], np.roll(page, 4, axis=1))
    assert (cold - prefill(other, where, start=128)).abs().max() > 1e-2


def test_a_batch_gives_each_sequence_what_it_gets_alone():
    lengths, pool = (20, 3, 40), new_pool()
    pages = np.arange(18, dtype=np.int64).reshape(3, 6)
    for n, where in zip(lengths, pages, strict=True):
        prefill(pool, where, tokens=TOKENS[:n])
    batch = [Segment(TOKENS[n : n + 1], n, where) for n, where in zip(lengths, pages, strict=True)]
    together = LLAMA.forward(batch, pool)
    for row, segment in zip(together, batch, strict=True):
        alone = LLAMA.forward([segment], pool)[0]
        assert (row - alone).abs().max() <= 1e-4
        assert row.argmax() == alone.argmax()


def test_decode_equals_prefill_of_the_same_tokens():
    pool, where = new_pool(), slots(4)
    prefill(pool, where, tokens=TOKENS[:30])
    for at in range(30, 40):
        logits = LLAMA.forward([Segment(TOKENS[at : at + 1], at, where)], pool)[0]
    assert (logits - prefill(new_pool(), where, tokens=TOKENS[:40])).abs().max() <= 1e-4


def test_the_gate_opens_each_layer_in_turn_before_it_is_read():
    seen = []
    pool = new_pool()

    def gate(layer):
        seen.append(layer)
        assert not pool.k(layer).any(), "this layer was touched before its gate"

    LLAMA.forward([Segment(TOKENS[:10], 0, slots(1))], pool, gate)
    assert seen == [0, 1, 2]


def test_what_a_gate_raises_ends_the_pass():
    def gate(layer):
        if layer == 1:
            raise TimeoutError("page did not come")

    with pytest.raises(TimeoutError, match="did not come"):
        LLAMA.forward([Segment(TOKENS[:10], 0, slots(1))], new_pool(), gate)


@pytest.mark.parametrize(("count", "pages"), [(0, 4), (9, 1)])
def test_segments_that_cannot_be_are_refused(count, pages):
    with pytest.raises(ValueError, match=f"{count} tokens"):
        LLAMA.forward([Segment(TOKENS[:count], 0, np.arange(pages))], new_pool())


def test_half_precision_stays_near():
    half = Llama(CONFIG, random_weights(CONFIG, seed=3, dtype=torch.bfloat16))
    wide, narrow = prefill(new_pool(), slots(1)), prefill(new_pool(dtype="bfloat16"), slots(1), llama=half)
    assert narrow.dtype == torch.float32
    assert 0 < (wide - narrow).abs().max() < 0.5
