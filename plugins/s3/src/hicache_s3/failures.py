"""How an error of a client reads as an outcome of a page, or as an error at open with its mend."""

from __future__ import annotations

from hicache_core.types import Outcome

_BUCKET_GONE = ("NoSuchBucket", "ContainerNotFound", "The specified bucket does not exist")
_NO_ROOM = (
    "QuotaExceeded",
    "StorageFull",
    "InsufficientCapacity",
    "EntityTooLarge",
    "507 Insufficient Storage",
    "413 Payload Too Large",
    "413 Request Entity Too Large",
    "No space left on device",
)
_TIMED_OUT = ("TimedOut", "operation timed out")


def short(error: BaseException) -> str:
    """The error's text without the client's debug dump."""
    text = str(error).partition("\n\nDebug source")[0]
    return f"{type(error).__name__}: {text}"[:600]


def is_missing(error: BaseException) -> bool:
    """Whether the object is not there (as against its bucket)."""
    return isinstance(error, FileNotFoundError) and not any(word in str(error) for word in _BUCKET_GONE)


def is_taken(error: BaseException) -> bool:
    """Whether a conditional create found the key taken."""
    return isinstance(error, FileExistsError) or type(error).__name__ in ("AlreadyExistsError", "PreconditionError")


def is_empty_object(error: BaseException) -> bool:
    """Whether a ranged read found an object of no bytes at all."""
    return "416 Range Not Satisfiable" in str(error)


def is_whole_for_range(error: BaseException) -> bool:
    """Whether a server answered the read of a range with the whole object."""
    return "non-partial response" in str(error)


def outcome_of_read(error: BaseException) -> Outcome:
    """MISS, CORRUPT, TIMEOUT or UNAVAILABLE."""
    if is_missing(error):
        return Outcome.MISS
    if is_empty_object(error) or isinstance(error, IsADirectoryError):
        return Outcome.CORRUPT
    return _failure(error)


def outcome_of_write(error: BaseException) -> Outcome:
    """REJECTED where there is no room or the page is too large for the server; else TIMEOUT or UNAVAILABLE."""
    text = str(error)
    return Outcome.REJECTED if any(word in text for word in _NO_ROOM) else _failure(error)


def _failure(error: BaseException) -> Outcome:
    slow = isinstance(error, TimeoutError) or any(word in str(error) for word in _TIMED_OUT)
    return Outcome.TIMEOUT if slow else Outcome.UNAVAILABLE


_MENDS = (
    (_BUCKET_GONE, "the bucket of {url} is not there; make it, or name another in option url"),
    (
        ("SignatureDoesNotMatch",),
        "the secret does not fit the access key; check secret_access_key, the environment or the profile, and the "
        "clock of this machine",
    ),
    (
        ("InvalidAccessKeyId", "InvalidToken", "ExpiredToken"),
        "the server does not know these credentials (or they have expired); check access_key_id and session_token, "
        "the environment or the profile",
    ),
    (
        ("169.254.169.254", "metadata endpoint", "Failed to get credentials", "No credentials"),
        "no credentials were found: set access_key_id and secret_access_key, AWS_ACCESS_KEY_ID and "
        "AWS_SECRET_ACCESS_KEY, or a profile",
    ),
    (
        ("AuthorizationHeaderMalformed", "PermanentRedirect", "301 Moved", "IllegalLocationConstraint"),
        "the bucket is in another region; set option region",
    ),
    (
        ("AccessDenied", "403 Forbidden", "401 Unauthorized", "PermissionDenied", "Unauthenticated"),
        "the server refuses these credentials; they need s3:ListBucket, s3:GetObject, s3:PutObject, s3:DeleteObject",
    ),
    (
        ("certificate", "UnknownIssuer", "invalid peer"),
        "the server's certificate is not trusted; set ca_file to the authority's PEM file",
    ),
    (
        ("InvalidContentType", "corrupt message", "received corrupt"),
        "the endpoint does not speak TLS; write http:// and set allow_http=true if that is meant",
    ),
    (
        ("dns error", "failed to lookup", "Name or service not known"),
        "the host name of the endpoint cannot be resolved; check option endpoint",
    ),
    (
        ("error sending request", "Connection refused", "connect error", "TimedOut", "timed out"),
        "the endpoint does not answer; check that the server runs, and option endpoint",
    ),
)
"""Words of an error's text, the most telling first, and what to do about it."""


def mend_of(error: BaseException, url: str) -> str:
    """What to do about an error at open."""
    text = str(error)
    for words, mend in _MENDS:
        if any(word in text for word in words):
            return mend.format(url=url)
    return "check options url, endpoint, region and credentials"
