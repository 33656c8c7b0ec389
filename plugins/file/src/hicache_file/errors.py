"""How an error of the operating system reads as an outcome or as an error at open."""

from __future__ import annotations

import errno

from hicache_core.types import Outcome

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Nothing more fits, whatever its size."""
_NO_ROOM = FULL | {errno.EFBIG}
_NOT_A_PAGE = frozenset({errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.EMLINK})


def outcome_of_write(error: OSError) -> Outcome:
    """REJECTED where there is no room, else UNAVAILABLE."""
    return Outcome.REJECTED if error.errno in _NO_ROOM else Outcome.UNAVAILABLE


def outcome_of_read(error: OSError) -> Outcome:
    """CORRUPT where something that is no page lies in its place (a link, a directory), else UNAVAILABLE."""
    return Outcome.CORRUPT if error.errno in _NOT_A_PAGE else Outcome.UNAVAILABLE
