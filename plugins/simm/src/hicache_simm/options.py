"""What a user can set."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from hicache_core.plugin.sizes import ByteSize
from hicache_core.types import Capabilities


class SimmOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, frozen=True):
    """Options of backend `simm`."""

    manager_address: Annotated[
        str, Meta(description="HOST:PORT of the primary cluster manager", pattern=r"^.+:[0-9]+$")
    ]
    client_threads: Annotated[int, Meta(description="threads of the client (clnt_thread_pool_size)", ge=1)] = 10
    log_file: Annotated[str | None, Meta(description="the client's log (clnt_log_file)")] = None
    net_devices: Annotated[str | None, Meta(description="RDMA devices to use (SICL_NET_DEVICES)")] = None
    bounce_size: Annotated[
        ByteSize,
        Meta(
            description="registered memory through which pages go, shared out among arenas; a page must fit in one",
            ge=1 << 20,
        ),
    ] = 256 << 20
    arenas: Annotated[
        int, Meta(description="parts of bounce_size: calls that may move data at once", ge=1, le=64)
    ] = 4

    @property
    def arena_bytes(self) -> int:
        """Bytes of one arena, in whole pages of memory."""
        return self.bounce_size // self.arenas // 4096 * 4096


def capabilities(options: SimmOptions) -> Capabilities:
    """What a store with these options declares. SiMM keeps pages in memory: not durable."""
    return Capabilities(
        shared=True,
        replace=True,
        delete="immediate",
        clean_miss=True,
        max_page_bytes=options.arena_bytes,
    )
