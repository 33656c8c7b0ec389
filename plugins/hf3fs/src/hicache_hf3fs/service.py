"""The metadata service: the SQLite index behind HTTP, for several nodes that mount one root.

The standard library's server is enough: a batch of 128 pages is one request of some 15 kB, the clients are the ranks
of a cluster, each with a few connections that are kept alive, and every answer waits for SQLite anyway.
"""

from __future__ import annotations

import hmac
import logging
import socket
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec

from hicache_hf3fs.errors import IndexFailure, IndexFull, IndexTimeout
from hicache_hf3fs.index.interface import Identity, Placed
from hicache_hf3fs.index.schema import LAYOUT
from hicache_hf3fs.index.sqlite_index import SqliteIndex
from hicache_hf3fs.wire import MOST_BYTES, argument_decoders, encode

_log = logging.getLogger(__name__)
_IDLE_SECONDS = 600.0


class MetadataService(ThreadingHTTPServer):
    """Listens when made; `serve_forever()` answers, `shutdown()` ends that, `server_close()` lets go."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], index: SqliteIndex, token: str | None) -> None:
        """Raises OSError where the address cannot be had."""
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, _Handler)
        self.index, self.token = index, token


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = _IDLE_SECONDS
    disable_nagle_algorithm = True
    wbufsize = -1
    server: MetadataService

    def do_GET(self) -> None:
        """Whether it lives, for whoever watches it."""
        if self.path == "/health":
            self._answer(HTTPStatus.OK, b"ok\n", "text/plain")
        else:
            self._answer(HTTPStatus.NOT_FOUND, b"POST /v1/<method>\n", "text/plain")

    def do_POST(self) -> None:
        """Answer one method."""
        body = self._body()
        if body is None:
            return
        method = self.path.removeprefix("/v1/")
        if method not in argument_decoders or not self.path.startswith("/v1/"):
            return self._refuse(HTTPStatus.NOT_FOUND, f"there is no method {self.path}")
        try:
            arguments = argument_decoders[method].decode(body)
        except msgspec.DecodeError as error:
            return self._refuse(HTTPStatus.BAD_REQUEST, f"{method}: {error}")
        try:
            answer = encode(_METHODS[method](self.server.index, *arguments))
        except IndexTimeout as error:
            return self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        except IndexFull as error:
            return self._refuse(HTTPStatus.INSUFFICIENT_STORAGE, str(error))
        except IndexFailure as error:
            return self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))
        self._answer(HTTPStatus.OK, answer, "application/msgpack")

    def _body(self) -> bytes | None:
        """The request's body; None where it was refused."""
        try:
            length = int(self.headers.get("Content-Length", ""))
        except ValueError:
            self.close_connection = True
            self._refuse(HTTPStatus.LENGTH_REQUIRED, "a request needs Content-Length")
            return None
        if not 0 <= length <= MOST_BYTES:
            self.close_connection = True
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a request has at most {MOST_BYTES} bytes")
            return None
        token = self.server.token
        given = self.headers.get("Authorization", "").encode("latin-1", "replace")
        if token is not None and not hmac.compare_digest(given, f"Bearer {token}".encode()):
            self.close_connection = True
            self._refuse(HTTPStatus.UNAUTHORIZED, "this token is wrong or missing (option metadata_token)")
            return None
        return self.rfile.read(length)

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        self._answer(status, f"{why}\n".encode(), "text/plain; charset=utf-8")

    def _answer(self, status: HTTPStatus, data: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """To our logger, not to stderr."""
        _log.debug("%s %s", self.address_string(), format % args)


def _commit(index: SqliteIndex, owner: str, placed: list[Placed], failed: Any, replace: bool) -> list[int]:
    return index.commit(placed, failed, replace=replace, owner=owner)


_METHODS: dict[str, Any] = {
    "identity": lambda index: Identity(index.store_id, LAYOUT),
    "lookup": lambda index, keys: index.lookup(keys),
    "still": lambda index, *rest: _as_list(index.still(*rest)),
    "reserve": lambda index, owner, keys, sizes, replace, hollow: index.reserve(
        keys, sizes, replace=replace, may_hollow=hollow, owner=owner
    ),
    "hollowed": lambda index, owner, slots: index.hollowed(slots, owner=owner),
    "spare": lambda index, owner, limit: index.spare(limit, owner=owner),
    "excess": lambda index, owner, limit: index.excess(limit, owner=owner),
    "commit": _commit,
    "delete": lambda index, keys: index.delete(keys),
    "clear": lambda index, namespace: index.clear(namespace),
    "scan": lambda index, namespace, after, limit: index.scan(namespace, after, min(limit, 65_536)),
    "totals": lambda index: index.totals(),
}


def _as_list(there: frozenset[int] | None) -> list[int] | None:
    return None if there is None else list(there)
