"""The remote connector: for the generation of LMCache that runs inside an engine's workers.

remote_storage_plugins: ["hicache"]
extra_config:
  remote_storage_plugin.hicache.module_path: hicache_core.adapters.lmcache
  remote_storage_plugin.hicache.class_name: HiCacheConnectorAdapter
  remote_storage_plugin.hicache.config: {backend: file, options: {root: /var/cache/kv}}

Its coroutines run on LMCache's event loop and wait for the session without blocking it.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from lmcache.v1.exceptions import IrrecoverableException
from lmcache.v1.storage_backend.connector import ConnectorAdapter, extract_plugin_type
from lmcache.v1.storage_backend.connector.base_connector import RemoteConnector

from hicache_core.adapters.door_options import parse_door_options
from hicache_core.adapters.lmcache import chunks, engine
from hicache_core.adapters.lmcache.options import ConnectorOptions
from hicache_core.adapters.untried import warn_of_untried_version
from hicache_core.errors import HiCacheError, NotSupportedError, StorageError, told
from hicache_core.storage import Handle, StorageSession, open_session
from hicache_core.types import Outcome

T = TypeVar("T")
Keys = list[str]
"""The class below has a method `list`."""
PLUGIN = "hicache"
_CLOSE = 5.0
"""Seconds that `close` waits for calls inside the store."""
_PAUSE = 0.02
"""Seconds between two tries to get memory from LMCache's CPU backend."""

_log = logging.getLogger(__name__)


class HiCacheConnectorAdapter(ConnectorAdapter):  # type: ignore[misc]
    """Makes the connector of a plugin called `hicache` or `hicache.INSTANCE`."""

    def __init__(self) -> None:
        super().__init__(f"plugin://{PLUGIN}")

    def can_parse(self, url: str) -> bool:
        """Whether the URL is of such a plugin."""
        return url.startswith("plugin://") and extract_plugin_type(url[len("plugin://") :]) == PLUGIN

    def create_connector(self, context: Any) -> HiCacheConnector:
        """Raises IrrecoverableException, with what to change, for a configuration that cannot work."""
        return HiCacheConnector(
            loop=context.loop,
            local_cpu_backend=context.local_cpu_backend,
            config=context.config,
            metadata=context.metadata,
            plugin_name=context.plugin_name or PLUGIN,
        )


class HiCacheConnector(RemoteConnector):  # type: ignore[misc]
    """A store of hicache as a remote backend. Named by itself, it takes LMCache's metadata from the CPU backend."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        local_cpu_backend: Any,
        config: Any,
        metadata: Any = None,
        plugin_name: str = "",
    ) -> None:
        warn_of_untried_version("lmcache")
        metadata = metadata or getattr(local_cpu_backend, "metadata", None)
        name = plugin_name or _own_name(config)
        where = f"extra_config remote_storage_plugin.{name}.config"
        try:
            chunks.refuse_what_cannot_work(config, metadata, where)
            super().__init__(config, metadata)
            self.session, options = _open(config, metadata, name, where)
        except HiCacheError as error:  # any other exception is logged by LMCache, which then runs without a store
            raise IrrecoverableException(str(error)) from error
        self._cpu, self._metadata = local_cpu_backend, metadata
        self._hold = options.hold
        self._padding = memoryview(bytes(self.full_chunk_size_bytes))
        _warn_of_random_hashes(config)

    # -- what is there

    async def exists(self, key: Any) -> bool:
        """Whether the store has the chunk."""
        return (await _answer(self.session.submit_contains([chunks.page_hash(key)])))[0]

    def exists_sync(self, key: Any) -> bool:
        """The same, waiting."""
        return self.session.contains([chunks.page_hash(key)])[0]

    def support_batched_contains(self) -> bool:
        """One question for a whole prompt."""
        return True

    def batched_contains(self, keys: Sequence[Any]) -> int:
        """How many leading chunks the store has, waiting."""
        return self.session.exists([chunks.page_hash(key) for key in keys])

    async def batched_async_contains(self, lookup_id: str, keys: Sequence[Any], pin: bool = False) -> int:
        """How many leading chunks the store has. A store cannot pin."""
        return await _answer(self.session.submit_exists([chunks.page_hash(key) for key in keys]))

    # -- reading

    async def get(self, key: Any) -> Any | None:
        """The chunk, or None."""
        return (await self.batched_get([key]))[0]

    def support_batched_get(self) -> bool:
        """One call for a whole prompt."""
        return True

    async def batched_get(self, keys: Sequence[Any]) -> list[Any | None]:
        """The chunks, None for those that the store has not or for which there was no memory."""
        taken = await self._allocate(len(keys))
        headers = [bytearray(chunks.HEADER_BYTES) for _ in taken]
        good: list[Any] = []
        try:
            pages = [[head, _view(obj)] for head, obj in zip(headers, taken, strict=True)]
            handle = self.session.submit_get([chunks.page_hash(key) for key in keys[: len(taken)]], pages)
            outcomes = await _answer(handle)
            for index, (outcome, obj) in enumerate(zip(outcomes, taken, strict=True)):
                good.append(self._as_long(obj, chunks.length_in(headers[index])) if outcome else None)
        except BaseException:
            for obj in (*taken[len(good) :], *filter(None, good)):
                obj.ref_count_down()
            raise
        for obj, kept in zip(taken, good, strict=True):
            if kept is not obj:
                obj.ref_count_down()
        return good + [None] * (len(keys) - len(good))

    async def _allocate(self, count: int) -> list[Any]:
        """As many full chunks as there is memory for.

        LMCache's own waiting would stand on its event loop, and with it the ends of stores that give memory back. So
        the first one is waited for here, up to the session's deadline, and further ones not at all.
        """
        taken: list[Any] = []
        loop = asyncio.get_running_loop()
        end = loop.time() + self.session.settings.timeout
        while len(taken) < count:
            obj = self._cpu.allocate(self.meta_shapes, self.meta_dtypes, self.meta_fmt, busy_loop=False)
            if obj is not None:
                taken.append(obj)
            elif taken or loop.time() >= end:
                break
            else:
                await asyncio.sleep(_PAUSE)
        return taken

    def _as_long(self, obj: Any, nbytes: int) -> Any | None:
        """The object itself where its chunk is full, else another one of the right shape."""
        if nbytes == self.full_chunk_size_bytes:
            return obj
        tokens, rest = divmod(nbytes, self.single_token_size)
        if rest or not 0 < nbytes < self.full_chunk_size_bytes:
            return None
        shapes = self._metadata.get_shapes(tokens)
        short = self._cpu.allocate(shapes, self.meta_dtypes, self.meta_fmt, busy_loop=False)
        if short is not None:
            _view(short)[:] = _view(obj)[:nbytes]
        return short

    async def batched_get_non_blocking(self, lookup_id: str, keys: Sequence[Any]) -> list[Any]:
        """The chunks before the first that is missing; what lies behind it is given back."""
        found = await self.batched_get(keys)
        end = found.index(None) if None in found else len(found)
        for obj in found[end:]:
            if obj is not None:
                obj.ref_count_down()
        return found[:end]

    # -- writing

    async def put(self, key: Any, memory_obj: Any) -> None:
        """Store a chunk. Raises StorageError where that failed, which LMCache counts."""
        await self.batched_put([key], [memory_obj])

    def support_batched_put(self) -> bool:
        """One call for many chunks."""
        return True

    async def batched_put(self, keys: Sequence[Any], memory_objs: Sequence[Any]) -> None:
        """Store chunks. Ends when the store has let go of them: LMCache drops its references then."""
        pages = [self._page(_view(obj)) for obj in memory_objs]
        handle = self.session.submit_set([chunks.page_hash(key) for key in keys], pages)
        freed = _event(handle.add_returned_callback)
        outcomes = await _answer(handle)
        if not handle.returned.is_set() and not (await asyncio.wait((freed,), timeout=self._hold))[0]:
            _log.warning(
                "the store has not let go of %d chunks %.0f s after their deadline; LMCache may use their memory "
                "again. A page that is written from it now is damaged and will be a miss",
                len(keys),
                self._hold,
            )
        failed = [outcome.value for outcome in outcomes if not outcome]
        if failed:
            raise StorageError(
                f"{len(failed)} of {len(keys)} chunks were not stored: {', '.join(sorted(set(failed)))}"
            )

    def _page(self, data: memoryview) -> list[Any]:
        nbytes = len(data)
        if not 0 < nbytes <= self.full_chunk_size_bytes or nbytes % self.single_token_size:
            raise StorageError(f"an object of {nbytes} bytes is no chunk of tokens of {self.single_token_size} bytes")
        padding = self._padding[nbytes:]
        return [chunks.header(nbytes), data, *([padding] if padding else [])]

    # -- administration

    def remove_sync(self, key: Any) -> bool:
        """Whether the chunk was there and is gone."""
        try:
            return self.session.delete([chunks.page_hash(key)])[0] is Outcome.HIT
        except (NotSupportedError, StorageError) as error:
            _log.warning("a chunk could not be removed: %s", told(error))
            return False

    async def list(self) -> Keys:
        """Physical keys of all chunks of this configuration. NotSupportedError where the store cannot list."""
        return await asyncio.get_running_loop().run_in_executor(None, self._scan)

    def _scan(self) -> Keys:
        keys: Keys = []
        cursor: str | None = None
        while True:
            found, cursor = self.session.scan(cursor)
            keys += [key for key, _, _ in found]
            if cursor is None:
                return keys

    def support_ping(self) -> bool:
        """LMCache's health check asks."""
        return True

    async def ping(self) -> int:
        """0 while the store answers; 1 while it is left alone, since it kept failing."""
        return 0 if self.session.healthy() else 1

    async def close(self) -> None:
        """End threads and close the store. Idempotent; waits a few seconds at most."""
        await asyncio.get_running_loop().run_in_executor(None, self.session.close, _CLOSE)

    def __repr__(self) -> str:
        return f"<HiCacheConnector {self.session!r}>"


def _open(config: Any, metadata: Any, name: str, where: str) -> tuple[StorageSession, ConnectorOptions]:
    given = (config.extra_config or {}).get(f"remote_storage_plugin.{name}.config", {})
    options = parse_door_options(ConnectorOptions, given, where)
    hashes = str(getattr(config, "pre_caching_hash_algorithm", ""))
    session = open_session(
        options.choice(where),
        identity=chunks.identity_of(metadata, options, engine.short_version(), hashes, where),
        settings=options.settings(where),
        transforms=options.transforms,
        observers=options.observers,
        rank=metadata.worker_id,
        world_size=metadata.world_size,
    )
    return session, options


def _own_name(config: Any) -> str:
    """The plugin's name, which LMCache does not tell a connector class that is named by itself."""
    extra = config.extra_config or {}
    for name in config.remote_storage_plugins or ():
        if extra.get(f"remote_storage_plugin.{name}.class_name") == HiCacheConnector.__name__:
            return str(name)
    return PLUGIN


@functools.cache
def _told_of_hashes() -> None:
    _log.warning(
        "LMCache hashes chunks by Python's own hash, whose seed is drawn in each process: nothing that is stored now "
        "will be found after a restart. Set PYTHONHASHSEED to one number everywhere, or "
        "pre_caching_hash_algorithm: sha256_cbor"
    )


def _warn_of_random_hashes(config: Any) -> None:
    if getattr(config, "pre_caching_hash_algorithm", "") == "builtin" and "PYTHONHASHSEED" not in os.environ:
        _told_of_hashes()


def _view(obj: Any) -> memoryview:
    return memoryview(obj.byte_array).cast("B")


def _event(add_callback: Callable[[Callable[[Any], None]], None]) -> asyncio.Future[None]:
    """A future of the running loop that is done once a handle calls back, from whatever thread."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def settle() -> None:
        if not future.done():
            future.set_result(None)

    def called(_: object) -> None:
        try:
            loop.call_soon_threadsafe(settle)
        except RuntimeError:  # the loop is closed: nobody waits any more
            pass

    add_callback(called)
    return future


async def _answer(handle: Handle[T]) -> T:
    """Its result. Cancelled, it gives up: nothing is written into its memory from there on."""
    try:
        await _event(handle.add_done_callback)
    except BaseException:
        handle.abandon()
        raise
    return handle.result()
