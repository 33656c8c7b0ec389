"""What a user can set."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from hicache_core.plugin.sizes import ByteSize
from hicache_core.types import Capabilities

INSTALL = "pip install 'aibrix-kvcache>=0.8,<0.9'  # Python 3.11 or 3.12; brings torch and rocksdict"

ONLY_ROCKSDB = ("ttl_seconds", "write_buffer_size", "max_wal_size", "background_jobs")
"""Options that mean nothing to SHFS, and are refused there."""


class AibrixOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, frozen=True):
    """Options of backend `aibrix`. Sizes are in bytes; where text is accepted, "10GB" and "1.5GiB" work too."""

    root: Annotated[
        str, Meta(description="directory of the store, its own; made (0700) when it is not there", min_length=1)
    ]
    connector: Annotated[
        Literal["shfs", "rocksdb"],
        Meta(
            description="AIBrix's connector: shfs = a file per page, for any number of processes; rocksdb = an "
            "embedded database that belongs to one process at a time"
        ),
    ] = "shfs"
    threads: Annotated[
        int, Meta(description="pages that the connector moves at once (AIBrix: NUM_ASYNC_WORKERS)", ge=1, le=64)
    ] = 4
    ttl_seconds: Annotated[
        Annotated[int, Meta(ge=1, le=2**31 - 1)] | None,
        Meta(
            description="rocksdb: age at which a page may be dropped when its part of the database is compacted; "
            "none: never (AIBrix: ROCKSDB_TTL_S)"
        ),
    ] = None
    write_buffer_size: Annotated[
        Annotated[ByteSize, Meta(ge=64 << 10)] | None,
        Meta(description="rocksdb: bytes gathered in memory before they are sorted into a file; none: 64 MiB"),
    ] = None
    max_wal_size: Annotated[
        Annotated[ByteSize, Meta(ge=64 << 10)] | None,
        Meta(description="rocksdb: bytes of write-ahead log from which it is trimmed; none: 128 MiB"),
    ] = None
    background_jobs: Annotated[
        Annotated[int, Meta(ge=1, le=64)] | None,
        Meta(description="rocksdb: threads that flush and compact, for the whole process; none: 2"),
    ] = None


def capabilities(options: AibrixOptions) -> Capabilities:
    """What a store with these options declares."""
    return Capabilities(
        durable=True,
        shared=options.connector == "shfs",
        replace=True,
        delete="immediate",
        reports_exists=True,
        clean_miss=True,
    )
