"""What a user can set, and how a URL says it."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec
from msgspec import Meta

from hicache_core.errors import OptionError
from hicache_core.plugin.redaction import redact_url
from hicache_core.plugin.sizes import ByteSize
from hicache_core.types import Capabilities

DIRECT_ALIGNMENT = 4096
"""Bytes that O_DIRECT wants addresses, offsets and lengths to be a multiple of, on every file system we know."""

Sync = Literal["none", "data", "full"]


class FileOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, frozen=True):
    """Options of backend `file`. Sizes are in bytes; where text is accepted, "10GB" and "1.5GiB" work too."""

    root: Annotated[str, Meta(description="directory of the store, its own; made (0700) when it is not there")]
    max_size: Annotated[
        Annotated[ByteSize, Meta(ge=1)] | None,
        Meta(
            description="bytes on disk that all pages under root may take together, whoever wrote them; none: no cap"
        ),
    ] = None
    min_free_space: Annotated[ByteSize, Meta(description="bytes to leave free on the file system", ge=0)] = 0
    eviction_ratio: Annotated[
        float, Meta(description="when the cap is reached, evict down to this share of it", gt=0, le=1)
    ] = 0.9
    sync: Annotated[
        Sync,
        Meta(
            description="what survives a power cut: none = newest pages may be lost or damaged (the seal finds out); "
            "data = lost but never damaged; full = nothing that was answered stored is lost"
        ),
    ] = "none"
    direct: Annotated[
        bool, Meta(description="bypass the page cache (O_DIRECT); an error at open where the file system cannot")
    ] = False
    touch_interval: Annotated[
        float, Meta(description="seconds in which further hits on a page do not renew its time stamp", ge=0)
    ] = 60.0
    allow_symlink: Annotated[bool, Meta(description="let root itself be a symbolic link")] = False


def capabilities(options: FileOptions) -> Capabilities:
    """What a store with these options declares."""
    return Capabilities(
        durable=True,
        shared=True,
        zero_copy_v1=not options.direct,  # pools of other engines need not be aligned as O_DIRECT wants it
        replace=True,
        delete="immediate",
        scan=True,
        reports_exists=True,
        clean_miss=True,
        alignment=DIRECT_ALIGNMENT if options.direct else 1,
    )


def options_from_url(url: str) -> dict[str, str]:
    """Options in `file:///var/cache/kv?max_size=10GB`: the path is root, the query holds the rest (as text).

    Raises OptionError for a host, which a local path cannot have.
    """
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost"):
        host = parts.netloc.rpartition("@")[2]  # what stands before it may be a password
        raise OptionError(
            f"{redact_url(url)} names a host ({host!r}), but a file store is a local path; "
            f"write file:///{host}{parts.path} with three slashes"
        )
    found = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    if parts.path:
        found["root"] = unquote(parts.path)
    return found
