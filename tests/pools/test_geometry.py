from __future__ import annotations

import pytest

from hicache_core.errors import ConfigError, UnknownNameError
from hicache_core.pools.geometry import KVGeometry


def test_bytes_of_the_reference_model():
    geometry = KVGeometry("mha", 30, 3, 64, dtype="float32", page_size=16)
    assert geometry.token_nbytes == 30 * 3 * 64 * 4 * 2
    assert geometry.page_nbytes == 16 * 46080
    assert not geometry.asymmetric


def test_asymmetric_and_mla_bytes():
    assert KVGeometry("mha", 2, 4, 192, v_head_dim=128, dtype="bfloat16").row_bytes == (384, 256)
    assert KVGeometry("mha", 2, 4, 192, v_head_dim=128).asymmetric
    assert not KVGeometry("mha", 2, 4, 128, v_head_dim=128).asymmetric
    mla = KVGeometry("mla", 61, 1, 576, rope_dim=64, dtype="bfloat16")
    assert mla.token_nbytes == 61 * 1152


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"page_size": 48}, "power of two"),
        ({"page_size": 0}, "at least 1"),
        ({"layer_num": 0}, "layer_num"),
        ({"v_head_dim": 0}, "v_head_dim"),
        ({"rope_dim": 4}, "rope_dim"),
        ({"layer_start": -1}, "layer_start"),
        ({"kind": "mla", "head_num": 2}, "head_num must be 1"),
        ({"kind": "mla", "head_num": 1, "v_head_dim": 8}, "no separate V"),
        ({"kind": "mla", "head_num": 1, "rope_dim": 64}, "between 0 and"),
    ],
)
def test_what_cannot_be_is_refused(change, word):
    base = {"kind": "mha", "layer_num": 2, "head_num": 4, "head_dim": 64}
    with pytest.raises(ConfigError, match=word):
        KVGeometry(**{**base, **change})


def test_unknown_names_come_with_the_nearest():
    with pytest.raises(UnknownNameError, match="did you mean 'bfloat16'"):
        KVGeometry("mha", 2, 4, 64, dtype="bfloat61")
    with pytest.raises(UnknownNameError, match="mla"):
        KVGeometry("mlq", 2, 1, 64)  # type: ignore[arg-type]
