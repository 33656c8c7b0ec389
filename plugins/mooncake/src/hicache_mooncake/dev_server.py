"""A throwaway Mooncake store: mooncake_master, and a mooncake_client that owns the memory, from the SDK's wheel."""

from __future__ import annotations

import shutil
import sysconfig
from pathlib import Path

from hicache_core.errors import DevServerError
from hicache_core.plugin.dev_servers import DevServer, ServerProcess, free_ports
from hicache_mooncake.address import knock, parse_address
from hicache_mooncake.metrics import fetch
from hicache_mooncake.options import APT, INSTALL

SEGMENT_BYTES = 1 << 30
LEASE_MILLISECONDS = 10_000
_KNOCK_SECONDS = 1.0


def dev_server(directory: Path) -> DevServer:
    """A master and an owner of 1 GiB, on loopback. Raises DevServerError where the wheel is not installed."""
    return make_server(directory)


def make_server(
    directory: Path,
    *,
    segment_bytes: int = SEGMENT_BYTES,
    lease_milliseconds: int = LEASE_MILLISECONDS,
    owners: int = 1,
    master_flags: tuple[str, ...] = (),
) -> DevServer:
    """The same with other sizes. owners: processes that give `segment_bytes` each; 0 leaves that to the clients."""
    rpc, metrics, *own = free_ports(2 + owners)
    processes = [_master(directory, rpc, metrics, lease_milliseconds, master_flags)]
    processes += [
        _owner(directory, number, port, rpc, metrics, segment_bytes) for number, port in enumerate(own, start=1)
    ]
    options: dict[str, object] = {
        "master_address": f"127.0.0.1:{rpc}",
        "metrics_address": f"127.0.0.1:{metrics}",
    }
    if not owners:
        options["segment_size"] = segment_bytes
    return DevServer("mooncake", options, processes)


def owner_addresses(server: DevServer) -> list[str]:
    """host:port of the owners: what a standalone client connects to."""
    found = []
    for process in server.processes[1:]:
        found += [f"127.0.0.1:{arg.removeprefix('--port=')}" for arg in process.argv if arg.startswith("--port=")]
    return found


def _master(directory: Path, rpc: int, metrics: int, lease: int, flags: tuple[str, ...]) -> ServerProcess:
    address = parse_address(f"127.0.0.1:{rpc}", "master_address")
    argv = [
        _binary("mooncake_master"),
        "--rpc_address=127.0.0.1",
        f"--rpc_port={rpc}",
        "--metrics_host=127.0.0.1",
        f"--metrics_port={metrics}",
        f"--default_kv_lease_ttl={lease}",
        "--logtostderr",
        *flags,
    ]
    return ServerProcess(
        "mooncake-master", argv, directory=directory, ready=lambda: not knock(address, _KNOCK_SECONDS)
    )


def _owner(directory: Path, number: int, port: int, rpc: int, metrics: int, nbytes: int) -> ServerProcess:
    address = parse_address(f"127.0.0.1:{port}", "standalone_address")

    def ready() -> bool:
        segments = fetch(f"127.0.0.1:{metrics}", "/get_all_segments", _KNOCK_SECONDS).split()
        return len(segments) >= number and not knock(address, _KNOCK_SECONDS)

    argv = [
        _binary("mooncake_client"),
        f"--master_server_address=127.0.0.1:{rpc}",
        "--host=127.0.0.1",
        f"--port={port}",
        "--protocol=tcp",
        "--metadata_server=P2PHANDSHAKE",
        f"--global_segment_size={nbytes} B",
        "--logtostderr",
    ]
    environment = {"MC_TCP_BIND_ADDRESS": "127.0.0.1"}
    return ServerProcess(f"mooncake-owner-{number}", argv, directory=directory, environment=environment, ready=ready)


def _binary(name: str) -> str:
    own = Path(sysconfig.get_path("scripts"), name)
    found = str(own) if own.is_file() else shutil.which(name)
    if found is None:
        raise DevServerError(f"{name} is not installed; it comes with Mooncake's wheel: {INSTALL}; {APT}")
    return found
