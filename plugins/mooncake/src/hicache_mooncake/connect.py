"""Opening the SDK's client in bounded time, every foreseeable refusal with its cause and mend."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from hicache_core.errors import CapacityError, OpenError
from hicache_core.plugin.redaction import redact_url
from hicache_mooncake.address import Address, knock, parse_address, require
from hicache_mooncake.client import Client
from hicache_mooncake.codes import told
from hicache_mooncake.latch import Latch
from hicache_mooncake.options import MooncakeOptions, in_turn
from hicache_mooncake.sdk import environment, load_sdk

START_MASTER = "mooncake_master --rpc_port=50051 (a throwaway one: hicache dev-server mooncake)"
START_CLIENT = (
    "mooncake_client --master_server_address=HOST:PORT --port=50052 --global_segment_size='4 GB' --protocol=tcp"
)


def connect(options: MooncakeOptions) -> Client:
    """The client. Raises OpenError, CapacityError, OptionError or MissingDependencyError, within open_timeout."""
    sdk = load_sdk()
    server = _check_servers(options)
    _check_host(options)
    _check_memory(options)
    store = sdk.MooncakeDistributedStore()
    with environment(_variables(options)):
        code = _bounded(lambda: _set_up(store, options), store.close, options.open_timeout)
    if code != 0:
        store.close()
        raise OpenError(f"Mooncake's client could not be set up: {told(code)}. {_hint(options)}")
    kind = "standalone client" if options.standalone_address else "master"
    name = f"Mooncake's {kind} {server or _shown(options.master_address)}"

    def ask() -> str:
        trouble = knock(server, options.connect_timeout) if server is not None else ""
        return f"{name} does not answer: {trouble}" if trouble else ""

    return Client(store, _policy(sdk, options), Latch(ask, options.retry_interval), name, in_turn=in_turn(options))


def _check_servers(options: MooncakeOptions) -> Address | None:
    """Where to knock from now on; None for a highly available master, whose place the SDK finds out."""
    if options.standalone_address:
        client = parse_address(options.standalone_address, "standalone_address")
        require(client, options.connect_timeout, start=START_CLIENT)
        return client
    if "://" in options.master_address:
        return None
    master = parse_address(options.master_address, "master_address")
    require(master, options.connect_timeout, start=START_MASTER)
    parts = urlsplit(options.metadata_server)
    if parts.scheme in ("http", "https") and parts.hostname:
        port = parts.port or (443 if parts.scheme == "https" else 80)
        try:
            socket.create_connection((parts.hostname, port), options.connect_timeout).close()
        except OSError as error:
            raise OpenError(
                f"no metadata server at metadata_server={_shown(options.metadata_server)}: {error}. Start it, or "
                "leave metadata_server at P2PHANDSHAKE, which needs none"
            ) from error
    return master


def _check_host(options: MooncakeOptions) -> None:
    if options.standalone_address:
        return
    try:
        socket.getaddrinfo(options.host, None)
    except OSError as error:
        raise OpenError(
            f"host={options.host!r} cannot be resolved ({error.strerror}); name this machine as the other clients of "
            "the store reach it"
        ) from error


def _check_memory(options: MooncakeOptions) -> None:
    wanted = {"bounce_size": options.bounce_size, "local_buffer_size": options.local_buffer_size}
    if not options.standalone_address:
        wanted |= {"segment_size": options.segment_size}
    if options.ssd_offload_path:
        wanted["ssd_buffer_size"] = options.ssd_buffer_size
    free = available_memory()
    if free is not None and sum(wanted.values()) > free:
        told_sizes = " + ".join(f"{name}={size:,}" for name, size in wanted.items())
        raise CapacityError(f"{told_sizes} bytes is more memory than is free here ({free:,}); lower it")


def available_memory() -> int | None:
    """Bytes that can be had without swapping; None where the system does not say."""
    try:
        with open("/proc/meminfo") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        return None
    return None


def _set_up(store: Any, options: MooncakeOptions) -> int:
    if options.standalone_address:
        code: int = store.setup_dummy(options.bounce_size, options.local_buffer_size, options.standalone_address)
        return code
    offload = bool(options.ssd_offload_path)
    if offload:
        os.makedirs(options.ssd_offload_path, mode=0o700, exist_ok=True)
    code = store.setup(
        options.host,
        options.metadata_server,
        options.segment_size,
        options.local_buffer_size,
        options.protocol,
        options.device,
        options.master_address,
        enable_ssd_offload=offload,
        ssd_offload_path=options.ssd_offload_path,
        tenant_id=options.tenant_id,
    )
    return code


def _variables(options: MooncakeOptions) -> dict[str, str]:
    """What the SDK takes from the environment only."""
    wanted = {
        "MC_RPC_TIMEOUT_MS": str(int(options.rpc_timeout * 1000)),
        "MC_RPC_CONNECT_TIMEOUT_MS": str(int(options.connect_timeout * 1000)),
        "MC_STORE_CLIENT_SETUP_RETRIES": "2",
    }
    if options.ssd_offload_path:
        wanted |= {
            "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH": options.ssd_offload_path,
            "MOONCAKE_OFFLOAD_STORAGE_BACKEND_DESCRIPTOR": options.ssd_backend,
            "MOONCAKE_OFFLOAD_HEARTBEAT_INTERVAL_SECONDS": str(options.ssd_heartbeat),
            "MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES": str(options.ssd_buffer_size),
        }
    return wanted


def _policy(sdk: Any, options: MooncakeOptions) -> Any:
    policy = sdk.ReplicateConfig()
    policy.replica_num = options.replicas
    if options.soft_pin:
        policy.soft_pin_action = sdk.SoftPinAction.ENABLE
    return policy


def _bounded(work: Callable[[], int], undo: Callable[[], object], timeout: float) -> int:
    """work() on a thread of its own; OpenError after `timeout` seconds, and then undo() as soon as it returns."""
    done = threading.Event()
    given_up = threading.Event()
    answers: list[int] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(work())
        except BaseException as error:  # noqa: BLE001 - raised again by the one who waits
            errors.append(error)
        done.set()
        if given_up.is_set():
            undo()

    threading.Thread(target=run, daemon=True, name="hicache-mooncake-setup").start()
    if not done.wait(timeout):
        given_up.set()
        raise OpenError(
            f"Mooncake's client was not set up within open_timeout={timeout:g} s, although its server answers; look "
            "at the client's log lines on stderr (network devices, metadata server)"
        )
    if errors:
        raise errors[0]
    return answers[0]


def _hint(options: MooncakeOptions) -> str:
    hints = ["The SDK's own log lines on stderr say more"]
    if options.segment_size:
        hints.append(f"segment_size={options.segment_size:,} bytes must be free, and under `ulimit -l` with RDMA")
    if options.protocol != "tcp":
        hints.append(f"protocol={options.protocol} needs its device (device={options.device!r}); tcp needs none")
    if options.standalone_address:
        hints.append("a standalone client must run on this machine, with the same version of Mooncake")
    if options.metadata_server != "P2PHANDSHAKE":
        hints.append(f"metadata_server={_shown(options.metadata_server)} must answer")
    return "; ".join(hints)


def _shown(address: str) -> str:
    """For messages: a URL may hold a password (redis://:PASSWORD@…)."""
    return redact_url(address) if "://" in address else address
