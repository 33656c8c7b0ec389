"""What the master tells over HTTP (its --metrics_port): how large the store is, and which keys it holds."""

from __future__ import annotations

import http.client
import time
from dataclasses import dataclass

from hicache_core.errors import StorageError
from hicache_core.storage.legality import legal_key, legal_namespace
from hicache_mooncake.address import parse_address
from hicache_mooncake.client import Client
from hicache_mooncake.options import MooncakeOptions

SCAN_PAGE = 1000
_NAMES = ("master_key_count", "master_total_capacity_bytes", "master_allocated_bytes")


@dataclass(frozen=True, slots=True)
class StoreSize:
    """The store as a whole: keys, and bytes of memory on all owners."""

    keys: int
    capacity: int
    allocated: int


def fetch(address: str, path: str, timeout: float) -> str:
    """The body of one GET. Raises StorageError that names option, address and cause."""
    where = parse_address(address, "metrics_address")
    connection = http.client.HTTPConnection(where.host, where.port, timeout=timeout)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read()
    except (OSError, http.client.HTTPException) as error:
        raise StorageError(
            f"metrics_address={address} does not answer {path}: {error or type(error).__name__}; it is the HTTP port "
            "of mooncake_master (--metrics_port)"
        ) from error
    finally:
        connection.close()
    if answer.status != 200:
        raise StorageError(f"metrics_address={address} answered {path} with HTTP {answer.status}")
    return body.decode(errors="replace")


def store_size(options: MooncakeOptions) -> StoreSize | None:
    """Sizes, or None where metrics_address is not set, does not answer, or tells no sizes."""
    if not options.metrics_address:
        return None
    try:
        text = fetch(options.metrics_address, "/metrics", options.connect_timeout)
    except StorageError:
        return None
    found = dict(line.split(None, 1) for line in text.splitlines() if line.startswith(_NAMES) and " " in line)
    try:
        keys, capacity, allocated = (int(float(found[name])) for name in _NAMES)
    except (KeyError, ValueError):
        return None
    return StoreSize(keys, capacity, allocated)


def stored_keys(address: str, timeout: float) -> list[str]:
    """Every key of the store, sorted."""
    return sorted(filter(None, fetch(address, "/get_all_keys", timeout).splitlines()))


def scan(
    options: MooncakeOptions, client: Client, namespace: str | None, cursor: str | None
) -> tuple[list[tuple[str, int, float]], str | None]:
    """Some (key, bytes, now) in the order of the keys, after the cursor; the cursor is the last key given.

    The master keeps no time stamps. A page of unknown age is told as a new one: no rule of age then removes it.
    """
    if namespace is not None and not legal_namespace(namespace):
        return [], None
    keys = [
        key
        for key in stored_keys(options.metrics_address, options.rpc_timeout)
        if (cursor is None or key > cursor)
        and "/" in key
        and (namespace is None or key.startswith(f"{namespace}/"))
        and legal_key(key)
    ]
    page = keys[:SCAN_PAGE]
    sizes = [client.size(key) for key in page]
    now = time.time()
    entries = [(key, size, now) for key, size in zip(page, sizes, strict=True) if size >= 0]
    return entries, page[-1] if len(keys) > SCAN_PAGE else None
