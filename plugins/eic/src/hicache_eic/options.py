"""What a user can set."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from hicache_core.plugin.sizes import ByteSize
from hicache_core.types import Capabilities


class EicOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, frozen=True):
    """Options of backend `eic`. Those of the client have its own names."""

    endpoint: Annotated[str, Meta(description="address of the EIC cluster, as its client takes it", min_length=1)]
    instance_id: Annotated[str, Meta(description="the EIC instance", min_length=1)]
    namespace: Annotated[str, Meta(description="EIC's own namespace (`ns`) for every object")] = ""
    ttl_seconds: Annotated[int, Meta(description="seconds after which EIC forgets a page; -1: never", ge=-1)] = -1
    transport_type: Annotated[
        int | None, Meta(description="number of the client's TransportType; none: its own choice")
    ] = None
    log_dir: Annotated[str | None, Meta(description="directory of the client's log")] = None
    log_level: Annotated[int | None, Meta(description="number of the client's LogLevel")] = None
    flag_file: Annotated[str | None, Meta(description="the client's flag file")] = None
    local_interfaces: Annotated[
        str | None, Meta(description="network interfaces to use (multi_net_local_interface_names)")
    ] = None
    register_cuda_id: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(description="register the staging memory with the client, under this CUDA device; none: do not"),
    ] = None
    bounce_size: Annotated[
        ByteSize,
        Meta(
            description="memory through which pages go, shared out among arenas; a page must fit in one", ge=1 << 20
        ),
    ] = 256 << 20
    arenas: Annotated[
        int, Meta(description="parts of bounce_size: calls that may move data at once", ge=1, le=64)
    ] = 4

    @property
    def arena_bytes(self) -> int:
        """Bytes of one arena, in whole pages of memory."""
        return self.bounce_size // self.arenas // 4096 * 4096


def capabilities(options: EicOptions) -> Capabilities:
    """What a store with these options declares. How long EIC keeps a page is the operator's choice: not durable."""
    return Capabilities(
        shared=True,
        replace=True,
        delete="immediate",
        clean_miss=True,
        max_page_bytes=options.arena_bytes - HEADER_BYTES,
    )


HEADER_BYTES = 16
"""In front of each object: eight bytes of magic, then its length, since the client does not tell a stored length."""
