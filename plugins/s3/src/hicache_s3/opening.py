"""Opening a store: reach it, find out what it honours, or say what is wrong and what mends it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from hicache_core.errors import HiCacheError, OpenError
from hicache_core.plugin.redaction import hider, redact_url
from hicache_core.types import Capabilities
from hicache_s3.client import ObjectClient
from hicache_s3.daemon_pool import DaemonPool
from hicache_s3.failures import is_missing, mend_of, short
from hicache_s3.location import Location, client_of, locate
from hicache_s3.names import CONTROL
from hicache_s3.options import S3Options, capabilities
from hicache_s3.stats import Counters
from hicache_s3.sweep import once

PROBE = f"{CONTROL}/first-writer"
"""The object that opening makes, in a place that no key leads to. It stays: later opens need one request less."""
_PROBE_DATA = b"hicache made this object to find out whether the server honours If-None-Match: *\n"
_CLOSE_SECONDS = 2.0
_GIVE_UP_SECONDS = 0.5
"""For a thread that still asks a server which did not answer in open_timeout: the person has waited long enough."""


class Threads:
    """The threads of an open store. What is stuck in one direction does not hold up the others."""

    def __init__(self, options: S3Options) -> None:
        self.ask = DaemonPool(options.exists_concurrency, "hicache-s3-ask")
        self.read = DaemonPool(2 * options.concurrency, "hicache-s3-read")
        self.write = DaemonPool(2 * options.concurrency, "hicache-s3-write")

    def close(self, patience: float = _CLOSE_SECONDS) -> None:
        """End them; one that waits for a server that hangs ends when its request times out. patience: in seconds."""
        for pool in (self.ask, self.read, self.write):
            pool.close(patience)


@dataclass(frozen=True, slots=True)
class Store:
    """An open store. prefix: what every path begins with; "" or with a slash at its end."""

    options: S3Options
    client: ObjectClient
    threads: Threads
    prefix: str
    capabilities: Capabilities
    counters: Counters
    hide: Callable[[str], str]

    def close(self) -> None:
        """End threads and connections."""
        self.threads.close()
        self.client.close()


def open_store(options: S3Options, *, inspecting: bool = False) -> Store:
    """Open the store at options.url. Raises OptionError or OpenError, within open_timeout."""
    client, prefix = _client(options)
    threads = Threads(options)
    try:
        conditional = _meet(client, threads.ask, f"{prefix}{PROBE}", options, inspecting)
        client.conditional = conditional
        declared = capabilities(options)
        opened = msgspec.structs.replace(declared, reports_exists=declared.reports_exists and conditional)
        return Store(options, client, threads, prefix, opened, Counters(), hider(options))
    except BaseException:
        threads.close(_GIVE_UP_SECONDS)
        client.close()
        raise


def _client(options: S3Options) -> tuple[ObjectClient, str]:
    if client_of(options.url, options.client) == "obstore":
        from hicache_s3.obstore_client import ObstoreClient

        location: Location = locate(options.url)
        return ObstoreClient(location, options), location.path("")
    from hicache_s3.fsspec_client import FsspecClient

    client = FsspecClient(options)
    return client, f"{client.root}/" if client.root else ""


def _meet(client: ObjectClient, pool: DaemonPool, probe: str, options: S3Options, inspecting: bool) -> bool:
    """Read and write once; whether a create is one step on the server. Raises OpenError with the mend."""
    deadline = time.monotonic() + options.open_timeout
    url, hide = redact_url(options.url), hider(options)
    try:
        try:
            once(pool, lambda: client.read(probe, len(_PROBE_DATA)), deadline)
        except Exception as error:
            if not is_missing(error):
                raise
        if inspecting:
            return options.conditional == "auto"
        if options.conditional == "off" and client.name == "obstore":
            once(pool, lambda: client.replace(probe, _PROBE_DATA), deadline)
            return False
        return bool(once(pool, lambda: client.honours_create(probe, _PROBE_DATA), deadline))
    except HiCacheError:
        raise
    except TimeoutError as error:
        raise OpenError(
            f"the store at {_place(options)} did not answer within {options.open_timeout:g} s; check that its server "
            "runs, option endpoint, and the credentials (where none are given, the metadata service of the instance "
            "is asked)"
        ) from error
    except Exception as error:
        raise OpenError(
            f"the store at {_place(options)} refused to open: {mend_of(error, url)} ({hide(short(error))})"
        ) from error


def _place(options: S3Options) -> str:
    where = redact_url(options.url)
    return f"{where} (endpoint {options.endpoint})" if options.endpoint else where
