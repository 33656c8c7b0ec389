"""What a user can set."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from hicache_file.options import FileOptions
from hicache_file.options import capabilities as capabilities_of_files
from msgspec import Meta

from hicache_core.plugin.sizes import ByteSize
from hicache_core.types import Capabilities

Plugin = Literal["POSIX", "OBJ"]
Engine = Literal["auto", "io_uring", "posix_aio", "linux_aio", "default"]

PARAMETERS = {
    "posix_aio": {"use_posix_aio": "true"},
    "io_uring": {"use_uring": "true"},
    "linux_aio": {"use_aio": "true"},
    "default": {},
}
"""What NIXL's POSIX plugin is told for each engine."""

HEADER_BYTES = 16
"""In front of each object of OBJ: eight bytes of magic, then its length, since NIXL does not tell a stored length."""


class NixlOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, frozen=True):
    """Options of backend `nixl`: of both plugins, then of POSIX (as hicache-file's), then of OBJ."""

    plugin: Annotated[Plugin, Meta(description="NIXL's plugin: POSIX (files) or OBJ (S3 objects)")] = "POSIX"
    agents: Annotated[int, Meta(description="NIXL agents; each serves one call at a time", ge=1, le=64)] = 4
    bounce_size: Annotated[
        ByteSize,
        Meta(description="registered memory through which pages go that cannot go straight; of OBJ all", ge=1 << 20),
    ] = 64 << 20

    root: Annotated[str | None, Meta(description="POSIX: the store's own directory; made (0700) if needed")] = None
    engine: Annotated[
        Engine, Meta(description="POSIX: auto: io_uring where it may be used, else posix_aio; default: as NIXL likes")
    ] = "auto"
    direct: Annotated[
        bool, Meta(description="POSIX: bypass the page cache (O_DIRECT) where a page's length allows it")
    ] = False
    max_size: Annotated[
        Annotated[ByteSize, Meta(ge=1)] | None, Meta(description="POSIX: bytes on disk of all pages under root")
    ] = None
    min_free_space: Annotated[ByteSize, Meta(description="POSIX: bytes to leave free on the file system", ge=0)] = 0
    eviction_ratio: Annotated[
        float, Meta(description="POSIX: when the cap is reached, evict down to this share of it", gt=0, le=1)
    ] = 0.9
    sync: Annotated[
        Literal["none", "data", "full"], Meta(description="POSIX: what survives a power cut, as in hicache-file")
    ] = "none"
    allow_symlink: Annotated[bool, Meta(description="POSIX: let root itself be a symbolic link")] = False

    bucket: Annotated[str | None, Meta(description="OBJ: the bucket, which must be there")] = None
    prefix: Annotated[str, Meta(description="OBJ: what object names begin with")] = "hicache/"
    endpoint: Annotated[str | None, Meta(description="OBJ: URL of the S3 server; none: AWS")] = None
    region: Annotated[str, Meta(description="OBJ: region")] = "us-east-1"
    access_key_id: Annotated[str | None, Meta(description="OBJ: none: AWS_ACCESS_KEY_ID", extra={"secret": True})] = (
        None
    )
    secret_access_key: Annotated[
        str | None, Meta(description="OBJ: none: AWS_SECRET_ACCESS_KEY", extra={"secret": True})
    ] = None
    virtual_addressing: Annotated[bool, Meta(description="OBJ: the bucket is part of the host's name")] = False

    def of_files(self) -> FileOptions:
        """What hicache-file is told of them."""
        return FileOptions(
            root=self.root or "",
            max_size=self.max_size,
            min_free_space=self.min_free_space,
            eviction_ratio=self.eviction_ratio,
            sync=self.sync,
            direct=self.direct,
            allow_symlink=self.allow_symlink,
        )


def capabilities(options: NixlOptions) -> Capabilities:
    """What a store with these options declares."""
    if options.plugin == "OBJ":
        return Capabilities(
            durable=True,
            shared=True,
            replace=True,
            clean_miss=True,
            parallelism=options.agents,
            max_page_bytes=options.bounce_size // options.agents // 4096 * 4096 - HEADER_BYTES,
        )
    files = capabilities_of_files(options.of_files())
    return msgspec.structs.replace(files, zero_copy_v1=True, registration="region")
