"""Mooncake's result codes (mooncake-store/include/types.h) as outcomes."""

from __future__ import annotations

from hicache_core.types import Outcome

NO_ROOM, BAD_PARAMETERS = -200, -600
NOT_READY, NOT_FOUND, ALREADY_THERE, HAS_LEASE, LEASE_EXPIRED = -703, -704, -705, -706, -707
TRANSFER_FAILED, CHECKSUM = -800, -801
RPC_FAILED, RPC_TIMEOUT = -900, -901
INTERNAL = -1

NO_ANSWER = frozenset({RPC_FAILED, RPC_TIMEOUT})
"""The master (or the standalone client) did not answer."""

NAMES = {
    INTERNAL: "INTERNAL_ERROR",
    -10: "BUFFER_OVERFLOW",
    -101: "SEGMENT_NOT_FOUND",
    -102: "SEGMENT_ALREADY_EXISTS",
    -103: "CLIENT_NOT_FOUND",
    NO_ROOM: "NO_AVAILABLE_HANDLE",
    BAD_PARAMETERS: "INVALID_PARAMS",
    NOT_READY: "REPLICA_IS_NOT_READY",
    NOT_FOUND: "OBJECT_NOT_FOUND",
    ALREADY_THERE: "OBJECT_ALREADY_EXISTS",
    HAS_LEASE: "OBJECT_HAS_LEASE",
    LEASE_EXPIRED: "LEASE_EXPIRED",
    TRANSFER_FAILED: "TRANSFER_FAIL",
    CHECKSUM: "CHECKSUM_MISMATCH",
    RPC_FAILED: "RPC_FAIL",
    RPC_TIMEOUT: "RPC_TIMEOUT",
}

_GET = {
    NOT_FOUND: Outcome.MISS,
    NOT_READY: Outcome.MISS,  # its writer has not finished: as good as not there
    BAD_PARAMETERS: Outcome.CORRUPT,  # the object is longer than the page
    CHECKSUM: Outcome.CORRUPT,
    RPC_TIMEOUT: Outcome.TIMEOUT,
    LEASE_EXPIRED: Outcome.TIMEOUT,  # its lease ran out while it was read: the bytes may be another page's by now
}
_SET = {
    0: Outcome.STORED,
    ALREADY_THERE: Outcome.EXISTS,
    NO_ROOM: Outcome.REJECTED,
    BAD_PARAMETERS: Outcome.REJECTED,
    HAS_LEASE: Outcome.REJECTED,
    RPC_TIMEOUT: Outcome.TIMEOUT,
}
_DELETE = {0: Outcome.HIT, NOT_FOUND: Outcome.MISS, HAS_LEASE: Outcome.REJECTED, RPC_TIMEOUT: Outcome.TIMEOUT}


def told(code: int) -> str:
    """The code with its name."""
    return f"{NAMES.get(code, 'error')} ({code})"


def get_outcome(answer: int, expected: int) -> Outcome:
    """answer: bytes that were read, or a code."""
    if answer >= 0:
        return Outcome.HIT if answer == expected else Outcome.CORRUPT
    return _GET.get(answer, Outcome.UNAVAILABLE)


def set_outcome(code: int) -> Outcome:
    """What became of a page that was put."""
    return _SET.get(code, Outcome.UNAVAILABLE)


def delete_outcome(code: int) -> Outcome:
    """What became of a key that was removed."""
    return _DELETE.get(code, Outcome.UNAVAILABLE)
