"""What an unlimited store would have served."""

from __future__ import annotations

from collections.abc import Sequence


class Oracle:
    """Remembers every block of every request so far, each behind the blocks that led to it.

    A page is its tokens and all before them, so a block that comes again behind others is another page: a trace whose
    ids name contents alone finds less than its ids promise, and what it never had must not be counted as lost.
    """

    def __init__(self) -> None:
        self._after: dict[tuple[int, int], int] = {}
        """(number of the prefix, next block) -> number of the longer prefix; the empty prefix is 0."""
        self.hit_pages = 0
        """Blocks that unlimited storage would have served, if each request ended before the next began."""

    def run(self, hash_ids: Sequence[int]) -> int:
        """Leading blocks of this request that were seen before; then the request itself is seen."""
        after, prefix, run = self._after, 0, 0
        for block in hash_ids:
            longer = after.get((prefix, block))
            if longer is None:
                longer = after[prefix, block] = len(after) + 1
            else:
                run += 1
            prefix = longer
        self.hit_pages += run
        return run
