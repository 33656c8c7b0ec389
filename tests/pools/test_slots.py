from __future__ import annotations

import numpy as np

from hicache_core.pools import expand


def test_token_indices_of_pages():
    assert expand(np.array([2, 0]), 4).tolist() == [8, 9, 10, 11, 0, 1, 2, 3]
    assert expand(np.empty(0, np.int64), 4).dtype == np.int64
