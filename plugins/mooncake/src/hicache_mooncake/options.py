"""What a user can set, and how a URL says it."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import parse_qsl, urlsplit

import msgspec
from msgspec import Meta

from hicache_core.errors import OptionError
from hicache_core.plugin.redaction import redact_url
from hicache_core.plugin.sizes import ByteSize
from hicache_core.types import Capabilities

INSTALL = "pip install 'hicache-mooncake[non-cuda]' (with an NVIDIA driver: 'hicache-mooncake[cuda]')"
APT = "apt-get install -y libibverbs1"

CALL_BYTES = 20 << 20
"""Of one call to a segment of our own: measured with 8 to 64 MiB. Smaller ones repeat the master's part too often,
larger ones leave the SDK without work while the first are sealed and the last are verified."""

Protocol = Literal["tcp", "rdma", "efa", "barex", "ascend", "cxl", "ubshmem", "nvlink_intra"]
SsdBackend = Literal["file_per_key_storage_backend", "bucket_storage_backend", "offset_allocator_storage_backend"]


class MooncakeOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, frozen=True):
    """Options of backend `mooncake`. Sizes are in bytes; where text is accepted, "4GB" and "1.5GiB" work too."""

    master_address: Annotated[
        str,
        Meta(
            description="host:port of mooncake_master (its RPC port), or etcd://host:port;… of a highly available one"
        ),
    ]
    host: Annotated[str, Meta(description="this machine, as the other clients of the store reach it")] = "127.0.0.1"
    metadata_server: Annotated[
        str,
        Meta(
            description="P2PHANDSHAKE (needs no server), or the URL of a metadata server (http://…, etcd://…, redis://…)"
        ),
    ] = "P2PHANDSHAKE"
    protocol: Annotated[Protocol, Meta(description="how bytes travel between machines")] = "tcp"
    device: Annotated[str, Meta(description="RDMA devices, comma-separated; empty: found by the transfer engine")] = (
        ""
    )
    segment_size: Annotated[
        ByteSize,
        Meta(
            description="memory that this process gives to the store; 0: a pure client, others own the memory", ge=0
        ),
    ] = 0
    local_buffer_size: Annotated[
        ByteSize, Meta(description="the SDK's own buffer, through which pages go that replace others", ge=1 << 20)
    ] = 64 << 20
    replicas: Annotated[
        int,
        Meta(description="copies of each page on different owners; with fewer owners there are fewer", ge=1, le=16),
    ] = 1
    soft_pin: Annotated[bool, Meta(description="ask the master to evict these pages last")] = False
    tenant_id: Annotated[str, Meta(description="Mooncake's own tenant", min_length=1)] = "default"
    standalone_address: Annotated[
        str,
        Meta(
            description="host:port of a mooncake_client on this machine that owns memory and network (standalone "
            "storage): host pools are then allocated in memory shared with it; empty: this process is the client"
        ),
    ] = ""
    bounce_size: Annotated[
        ByteSize,
        Meta(
            description="memory through which pages go that cannot go straight: of many small parts over TCP, or in "
            "memory that standalone storage or RDMA does not see",
            ge=4 << 20,
        ),
    ] = 64 << 20
    ssd_offload_path: Annotated[
        str, Meta(description="directory to which this process's segment spills; the master needs --enable_offload")
    ] = ""
    ssd_backend: Annotated[
        SsdBackend, Meta(description="how spilled pages are kept; a bucket is written only when it is full")
    ] = "file_per_key_storage_backend"
    ssd_heartbeat: Annotated[int, Meta(description="seconds between two rounds of spilling", ge=1)] = 1
    ssd_buffer_size: Annotated[ByteSize, Meta(description="memory for spilling and reading back", ge=1 << 20)] = (
        256 << 20
    )
    metrics_address: Annotated[
        str,
        Meta(description="host:port of the master's HTTP port (--metrics_port): makes scan and size checks work"),
    ] = ""
    connect_timeout: Annotated[
        float, Meta(description="seconds that a server may take to answer when it is knocked at", gt=0, le=5)
    ] = 1.0
    open_timeout: Annotated[float, Meta(description="seconds that opening may take in all", gt=0, le=60)] = 8.0
    rpc_timeout: Annotated[
        float,
        Meta(
            description="seconds for one question to the master (MC_RPC_TIMEOUT_MS, if that is not set: the SDK "
            "takes it once per process)",
            gt=0,
        ),
    ] = 3.0
    retry_interval: Annotated[
        float,
        Meta(description="a server that did not answer is knocked at this often, in seconds, by the calls", ge=0),
    ] = 0.5


def in_turn(options: MooncakeOptions) -> bool:
    """Whether every byte goes over TCP: then one transfer at a time (see Client)."""
    return options.protocol == "tcp" and not options.segment_size and not options.standalone_address


def capabilities(options: MooncakeOptions) -> Capabilities:
    """What a store with these options declares.

    Not `durable`: pages are in memory, and what the master knows of them dies with it. Not `replace`: an upsert
    writes over the old bytes in place, and a reader that has begun sees both (ADR 0010); damaged pages are healed by
    delete and set.
    """
    return Capabilities(
        shared=True,
        zero_copy_v1=True,
        native_v2=True,
        delete="immediate",
        scan=bool(options.metrics_address),
        clean_miss=True,
        registration="region",
        # The SDK copies for one call at a time: while it does, the pages of another are sealed or verified.
        call_bytes=CALL_BYTES if options.segment_size else None,
        spread=not in_turn(options),  # the SDK spins while it waits: a second call would take the core it needs
    )


def options_from_url(url: str) -> dict[str, str]:
    """Options in `mooncake://10.0.0.1:50051?segment_size=4GB`: the place is the master, the query holds the rest.

    Raises OptionError for a user, a password or a path, which a master's address cannot have.
    """
    parts = urlsplit(url)
    if "@" in parts.netloc or parts.path.strip("/"):
        raise OptionError(
            f"{redact_url(url)}: a master's address is host:port only; write mooncake://HOST:PORT?name=value"
        )
    found = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    if parts.netloc:
        found["master_address"] = parts.netloc
    return found
