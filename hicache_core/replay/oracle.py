"""What an unlimited store would have served."""

from __future__ import annotations

from collections.abc import Sequence


class Oracle:
    """Remembers every block of every request so far."""

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self.hit_pages = 0
        """Blocks that unlimited storage would have served, if each request ended before the next began."""

    def run(self, hash_ids: Sequence[int]) -> int:
        """Leading blocks of this request that were seen before; then the request itself is seen."""
        seen = self._seen
        run = next((index for index, block in enumerate(hash_ids) if block not in seen), len(hash_ids))
        seen.update(hash_ids[run:])
        self.hit_pages += run
        return run
