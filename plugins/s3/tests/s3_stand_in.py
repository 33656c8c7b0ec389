"""A small S3 server in this process that can be told to misbehave. It checks no signature."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, str]
"""Status and code of an error."""


class StandIn:
    """conditional: honour If-None-Match. ranges: honour Range. fail: what to answer in place of an object's, or None.
    gate: called before each request is answered, with its method and path."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.requests: list[tuple[str, str]] = []
        self.conditional, self.ranges = True, True
        self.fail: Callable[[str, str], Answer | None] = lambda method, path: None
        self.gate: Callable[[str, str], object] = lambda method, path: None
        self.lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.stand_in = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def options(self) -> dict[str, Any]:
        """Options of a store on it."""
        return {
            "url": "s3://bucket/kv",
            "endpoint": f"http://127.0.0.1:{self._server.server_address[1]}",
            "access_key_id": "somebody",
            "secret_access_key": "a-secret-of-somebody",
            "allow_http": True,
        }

    def count(self, method: str) -> int:
        """Requests of that kind so far."""
        with self.lock:
            return sum(found == method for found, _ in self.requests)

    def __enter__(self) -> StandIn:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 256
    stand_in: StandIn

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hung up is no matter of ours."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        if self._refused():
            return
        data = self.server.stand_in.objects.get(self.path)
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if data is None:
            self._error(404, "NoSuchKey")
        elif found and self.server.stand_in.ranges and int(found[1]) >= len(data):
            self._error(416, "InvalidRange")
        elif found and self.server.stand_in.ranges:
            end = min(int(found[2]) + 1, len(data))
            self._answer(206, data[int(found[1]) : end], {"Content-Range": f"bytes {found[1]}-{end - 1}/{len(data)}"})
        else:
            self._answer(200, data)

    def do_HEAD(self) -> None:
        if self._refused():
            return
        data = self.server.stand_in.objects.get(self.path)
        if data is None:
            self._answer(404, b"", length=0)
        else:
            self._answer(200, b"", length=len(data))

    def do_PUT(self) -> None:
        stand_in = self.server.stand_in
        data = self.rfile.read(int(self.headers["Content-Length"]))
        if self._refused():
            return
        with stand_in.lock:
            taken = self.path in stand_in.objects
            refused = taken and stand_in.conditional and self.headers.get("If-None-Match") == "*"
            if not refused:
                stand_in.objects[self.path] = data
        if refused:
            self._error(412, "PreconditionFailed")
        else:
            self._answer(200, b"")

    def do_DELETE(self) -> None:
        if self._refused():
            return
        with self.server.stand_in.lock:
            self.server.stand_in.objects.pop(self.path, None)
        self._answer(204, b"")

    def _refused(self) -> bool:
        """Count the request, let the test hold it up, and refuse it where the test says so."""
        stand_in = self.server.stand_in
        with stand_in.lock:
            stand_in.requests.append((self.command, self.path))
        stand_in.gate(self.command, self.path)
        answer = stand_in.fail(self.command, self.path)
        if answer is not None:
            self._error(*answer)
        return answer is not None

    def _error(self, status: int, code: str) -> None:
        self._answer(status, f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode())

    def _answer(
        self, status: int, body: bytes, headers: dict[str, str] | None = None, length: int | None = None
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.send_header("ETag", '"e"')
        self.send_header("Last-Modified", "Mon, 02 Jan 2023 03:04:05 GMT")
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Silence."""
