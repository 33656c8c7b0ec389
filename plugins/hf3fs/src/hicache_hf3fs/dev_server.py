"""A throwaway metadata service for tests and demos: `hicache dev-server hf3fs`."""

from __future__ import annotations

import http.client
import secrets
import sys
from contextlib import closing
from pathlib import Path

from hicache_core.plugin.dev_servers import DevServer, ServerProcess, free_ports
from hicache_hf3fs.main import TOKEN_VARIABLE


def dev_server(directory: Path) -> DevServer:
    """A service with its index in `directory/index`, for pages in `directory/pages`."""
    [port] = free_ports(1)
    token = secrets.token_hex(8)
    index, pages = directory / "index", directory / "pages"
    process = ServerProcess(
        "metadata",
        [sys.executable, "-m", "hicache_hf3fs.main", "metadata", "--root", str(index), "--port", str(port)],
        directory=directory,
        environment={TOKEN_VARIABLE: token},
        ready=lambda: _answers(port),
    )
    options = {"root": str(pages), "metadata_url": f"http://127.0.0.1:{port}", "metadata_token": token}
    return DevServer("hf3fs", options, [process])


def _answers(port: int) -> bool:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=2)) as connection:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
