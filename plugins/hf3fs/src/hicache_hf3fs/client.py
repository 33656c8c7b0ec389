"""The index asked of a `hicache-hf3fs metadata` service."""

from __future__ import annotations

import http.client
import math
import os
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec

from hicache_core.errors import OpenError, OptionError
from hicache_core.plugin.redaction import redact_url
from hicache_hf3fs.counters import Totals
from hicache_hf3fs.errors import IndexFailure, IndexFull, IndexTimeout
from hicache_hf3fs.index.interface import Found, Listed, Placed, Reservation, Slot
from hicache_hf3fs.index.schema import LAYOUT
from hicache_hf3fs.wire import answer_decoders, encode

_PATIENCE_SECONDS = 5.0


class RemoteIndex:
    """Implements `Index`. Thread-safe: each call has a connection of its own, kept alive for the next one."""

    def __init__(self, url: str, token: str | None, touch_interval: float) -> None:
        """Ask the service who it is. Raises OptionError, OpenError."""
        parts = urlsplit(url)
        self._url = redact_url(url)
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1 or parts.path.strip("/"):
            raise OptionError(f"option metadata_url={self._url!r} is not of the form http://HOST:PORT")
        self._host, self._port, self._tls = parts.hostname, port, parts.scheme == "https"
        self._headers = {"Content-Type": "application/msgpack"}
        if token is not None:
            if not token.isascii() or not token.isprintable():
                raise OptionError("option metadata_token holds characters that no HTTP header can carry")
            self._headers["Authorization"] = f"Bearer {token}"
        self._me = os.urandom(8).hex()
        self._touching = math.isfinite(touch_interval)
        self._free: list[http.client.HTTPConnection] = []
        self._lock = threading.Lock()
        self._closed = False
        try:
            identity = self._ask("identity", (), None)
        except IndexFailure as error:
            self.close()
            raise OpenError(
                f"{error}; start it with `hicache-hf3fs metadata --root DIR --port PORT`, or correct metadata_url "
                "and metadata_token"
            ) from error
        if identity.layout != LAYOUT:
            self.close()
            raise OpenError(
                f"{self._url} speaks layout {identity.layout}, we {LAYOUT}; install one version everywhere"
            )
        self.store_id = identity.store_id

    def lookup(self, keys: Sequence[str], deadline: float | None) -> Found:
        """See Index."""
        found: Found = self._ask("lookup", (keys,), deadline)
        return found

    def still(
        self, epoch: int, ids: Sequence[int], used: Sequence[int], deadline: float | None
    ) -> frozenset[int] | None:
        """See Index."""
        there = self._ask("still", (epoch, ids, used if self._touching else ()), deadline)
        return None if there is None else frozenset(there)

    def reserve(
        self,
        keys: Sequence[str],
        sizes: Sequence[int],
        *,
        replace: bool,
        may_hollow: bool,
        deadline: float | None,
    ) -> Reservation:
        """See Index."""
        got: Reservation = self._ask("reserve", (self._me, keys, sizes, replace, may_hollow), deadline)
        return got

    def hollowed(self, slots: Sequence[Slot], deadline: float | None) -> None:
        """See Index."""
        self._ask("hollowed", (self._me, slots), deadline)

    def spare(self, limit: int, deadline: float | None) -> list[Slot]:
        """See Index."""
        slots: list[Slot] = self._ask("spare", (self._me, limit), deadline)
        return slots

    def excess(self, limit: int, deadline: float | None) -> list[Slot]:
        """See Index."""
        slots: list[Slot] = self._ask("excess", (self._me, limit), deadline)
        return slots

    def commit(
        self, placed: Sequence[Placed], failed: Sequence[Slot], *, replace: bool, deadline: float | None
    ) -> list[int]:
        """See Index."""
        verdicts: list[int] = self._ask("commit", (self._me, placed, failed, replace), deadline)
        return verdicts

    def delete(self, keys: Sequence[str], deadline: float | None) -> list[bool]:
        """See Index."""
        gone: list[bool] = self._ask("delete", (keys,), deadline)
        return gone

    def clear(self, namespace: str) -> int:
        """See Index."""
        count: int = self._ask("clear", (namespace,), time.monotonic() + 60.0)
        return count

    def scan(self, namespace: str | None, after: str | None, limit: int) -> list[Listed]:
        """See Index."""
        found: list[Listed] = self._ask("scan", (namespace, after, limit), None)
        return found

    def totals(self) -> Totals:
        """See Index."""
        totals: Totals = self._ask("totals", (), None)
        return totals

    def close(self, *, ours: bool = True) -> None:
        """See Index. In a forked child the sockets are closed too: that tells the service nothing."""
        if not ours:
            self._lock = threading.Lock()  # another thread of the parent may have held the old one
        with self._lock:
            self._closed = True
            connections, self._free = self._free, []
        for connection in connections:
            connection.close()

    def _ask(self, method: str, arguments: tuple[Any, ...], deadline: float | None) -> Any:
        """One request. Raises IndexFailure, IndexFull, IndexTimeout."""
        until = time.monotonic() + _PATIENCE_SECONDS if deadline is None else deadline
        body = encode(arguments)
        try:
            status, data = self._exchange(method, body, until)
        except TimeoutError as error:
            raise IndexTimeout(f"the metadata service at {self._url} did not answer in time") from error
        except (OSError, http.client.HTTPException) as error:
            raise IndexFailure(
                f"the metadata service at {self._url} cannot be reached ({type(error).__name__}: {error})"
            ) from error
        if status == 200:
            try:
                return answer_decoders[method].decode(data)
            except msgspec.DecodeError as error:
                raise IndexFailure(f"{self._url} is no metadata service of hicache-hf3fs ({error})") from error
        said = data[:200].decode("utf-8", "replace").strip()
        kind = {503: IndexTimeout, 507: IndexFull}.get(status, IndexFailure)
        raise kind(f"the metadata service at {self._url} answered {status}: {said}")

    def _exchange(self, method: str, body: bytes, until: float) -> tuple[int, bytes]:
        """Send and receive; once more on a fresh connection where a kept one turns out to be dead.

        That is harmless: every method may be repeated (what is reserved twice runs out).
        """
        while True:
            with self._lock:
                kept = self._free.pop() if self._free else None
            connection = kept or self._connect()
            try:
                left = until - time.monotonic()
                if left <= 0:
                    raise TimeoutError
                connection.timeout = left
                if connection.sock is None:
                    connection.connect()  # sets TCP_NODELAY
                sock: socket.socket = connection.sock
                sock.settimeout(left)
                connection.request("POST", f"/v1/{method}", body, self._headers)
                response = connection.getresponse()
                data = response.read()
            except TimeoutError:
                connection.close()
                raise
            except (OSError, http.client.HTTPException):
                connection.close()
                if kept is None:
                    raise
                continue
            except BaseException:
                connection.close()
                raise
            with self._lock:
                if not self._closed and not response.will_close:
                    self._free.append(connection)
                    return response.status, data
            connection.close()
            return response.status, data

    def _connect(self) -> http.client.HTTPConnection:
        make = http.client.HTTPSConnection if self._tls else http.client.HTTPConnection
        return make(self._host, self._port)
