"""From page slots to the token indices that some engines want."""

from __future__ import annotations

import numpy as np

from hicache_core.types import Slots


def expand(slots: Slots, page_size: int) -> Slots:
    """Token indices of these pages, in order: int64[n * page_size], slot * page_size + position in the page."""
    return (slots[:, None] * page_size + np.arange(page_size, dtype=np.int64)).reshape(-1)
