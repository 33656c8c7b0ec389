"""How errors read as outcomes."""

from __future__ import annotations

import errno

from hicache_core.errors import StorageError
from hicache_core.types import Outcome

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class IndexFailure(StorageError):
    """The index cannot answer: its disk, its service or its lock is at fault. The text says which, and the mend."""


class IndexFull(IndexFailure):
    """The index has no room to note one more page."""


class IndexTimeout(IndexFailure):
    """The index did not answer in time."""


def outcome_of_write(error: Exception) -> Outcome:
    """REJECTED where there is no room, TIMEOUT where time ran out, else UNAVAILABLE."""
    if isinstance(error, IndexFull) or (isinstance(error, OSError) and error.errno in _NO_ROOM):
        return Outcome.REJECTED
    return Outcome.TIMEOUT if isinstance(error, IndexTimeout | TimeoutError) else Outcome.UNAVAILABLE
