"""What a user can set."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from hicache_core.plugin.sizes import ByteSize
from hicache_core.types import Capabilities

Sync = Literal["none", "data", "full"]
Io = Literal["auto", "usrbio", "posix"]


class Hf3fsOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, frozen=True):
    """Options of backend `hf3fs`. Sizes are in bytes; where text is accepted, "10GB" and "1.5GiB" work too."""

    root: Annotated[
        str,
        Meta(description="directory of the page files, on 3FS or any file system; made (0700) when it is missing"),
    ]
    max_size: Annotated[
        Annotated[ByteSize, Meta(ge=4096)] | None,
        Meta(
            description="bytes that all slots under root may take together; the longest unused pages make room. "
            "none: until the file system is full. With metadata_url the service's own --max-size counts instead"
        ),
    ] = None
    index_dir: Annotated[
        str | None,
        Meta(
            description="directory of the embedded index, on a local disk; none: inside root. "
            "Needed where root is on a 3FS mount and no metadata_url is given"
        ),
    ] = None
    metadata_url: Annotated[
        str | None,
        Meta(
            description="http(s)://HOST:PORT of a `hicache-hf3fs metadata` service, for several nodes; "
            "none: the embedded index, for one node"
        ),
    ] = None
    metadata_token: Annotated[
        str | None,
        Meta(description="the service's token", extra={"secret": True}),
    ] = None
    io: Annotated[
        Io,
        Meta(
            description="auto = USRBIO where hf3fs_py_usrbio is there and root is on a 3FS mount, else the mounted "
            "path; usrbio = an error at open where that cannot be; posix = always the mounted path"
        ),
    ] = "auto"
    sync: Annotated[
        Sync,
        Meta(
            description="what survives a power cut: none = newest pages may be lost or damaged (the seal finds out); "
            "data = lost but never damaged; full = nothing that was answered stored is lost"
        ),
    ] = "none"
    touch_interval: Annotated[
        float, Meta(description="seconds in which further hits on a page do not renew its time of last use", ge=0)
    ] = 60.0
    rings: Annotated[int, Meta(description="USRBIO: batches in flight at once, each with its own rings", ge=1)] = 4
    ring_entries: Annotated[int, Meta(description="USRBIO: I/Os in one ring at once", ge=1, le=65536)] = 256
    iov_bytes: Annotated[
        Annotated[ByteSize, Meta(ge=4096)], Meta(description="USRBIO: shared memory of each ring pair")
    ] = 64 << 20
    allow_symlink: Annotated[bool, Meta(description="let root itself be a symbolic link")] = False


def capabilities(options: Hf3fsOptions) -> Capabilities:
    """What a store with these options declares. An opened one on USRBIO takes zero_copy_v1 back."""
    return Capabilities(
        durable=True,
        shared=True,
        zero_copy_v1=options.io != "usrbio",
        replace=True,
        delete="immediate",
        scan=True,
        reports_exists=True,
    )
