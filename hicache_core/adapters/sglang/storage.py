"""The class that SGLang makes for `--hicache-storage-backend dynamic`.

Runs against versions that differ (see `hicache_core.plugin.engines`): fields are read with defaults, types that a
version may lack are looked up when they are used, and no data-path method raises, since older versions lose their
I/O thread for ever when one does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from sglang.srt.mem_cache import hicache_storage as engine

from hicache_core.adapters.sglang.config import parse_config
from hicache_core.adapters.sglang.door import Door
from hicache_core.adapters.sglang.identity import Ranks, model_identity, weights_identity
from hicache_core.adapters.sglang.served import served_arguments
from hicache_core.adapters.sglang.traffic import metrics_type
from hicache_core.adapters.untried import warn_of_untried_version
from hicache_core.errors import HiCacheError, NotSupportedError, StorageError, told
from hicache_core.storage.session import StorageSession
from hicache_core.types import PoolHitPolicy

_log = logging.getLogger("hicache_core.adapters.sglang")
T = TypeVar("T")

_SLOW = (
    'hicache: "interface_v1" is not set in --hicache-storage-backend-extra-config, so SGLang copies every page one '
    'to three times more than needed on its way; add "interface_v1": 1'
)


class HiCacheDynamicStorage(engine.HiCacheStorage):  # type: ignore[misc]
    """A hicache store as SGLang's L3.

    Raises at construction and registration, when the engine starts: ConfigError and its kinds, PluginError,
    OpenError, each with what to change. Afterwards nothing raises: a store that fails means pages that are not there.
    """

    def __init__(self, storage_config: Any, kwargs: Mapping[str, Any] | None = None) -> None:
        config = parse_config(getattr(storage_config, "extra_config", None))
        served, name = served_arguments(), str(getattr(storage_config, "model_name", None) or "")
        options = config.options
        weights = weights_identity(options, served, name)
        self._door = Door(config, Ranks.of(storage_config), model_identity(options, served, name), weights)
        self._metrics = metrics_type()
        self.registered_pools: dict[Any, Any] = {}
        warn_of_untried_version("sglang")
        if not config.zero_copy:
            _log.warning(_SLOW)

    @property
    def session(self) -> StorageSession:
        """The open session, for tools. Raises MisuseError before a host pool is registered and after close."""
        return self._door.session

    # -- registration: on the engine's thread, before I/O

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """Open the store for the engine's main host pool. Raises what the class says."""
        self.mem_pool_host = mem_pool_host
        self._door.open(mem_pool_host)
        session = self.session
        _log.info("hicache: backend %s, namespace %s", session.backend_name, session.namespace)

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        """Make a further pool known. One that cannot be stored is refused with the reason."""
        self.registered_pools[host_pool_name] = host_pool
        self._door.attach(host_pool_name, host_pool)

    # -- queries

    def exists(self, key: str) -> bool:
        """Whether a page is stored."""
        return self._safe("exists", lambda: self._door.exists([key]) == 1, lambda: False)

    def batch_exists(self, keys: Sequence[str], extra_info: Any = None) -> int:
        """How many pages from the start are stored; any number of keys."""
        return self._safe("batch_exists", lambda: self._door.exists(keys), lambda: 0)

    def batch_exists_v2(self, keys: Sequence[str], pool_transfers: Any = None, extra_info: Any = None) -> Any:
        """The largest prefix that all pools can restore, and where this version has the field, every such prefix."""

        def ask() -> Any:
            queries = [_query(transfer) for transfer in pool_transfers or ()]
            found = self._door.exists_v2(keys, queries)
            lengths = list(found.restorable or ())
            pools = {name: found.kv_hit_pages for name, _, _ in queries if found.kv_hit_pages}
            return _result(found.kv_hit_pages, pools, lengths)

        return self._safe("batch_exists_v2", ask, lambda: _result(0, {}, []))

    # -- the generic path: flat pages

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        """Fill the flat page and give it back; None where it is not there."""
        return self.batch_get([key], [target_location])[0]

    def batch_get(self, keys: Sequence[str], target_locations: Any = None, target_sizes: Any = None) -> list[Any]:
        """Fill flat pages; None for each that is not there."""

        def ask() -> list[Any]:
            targets = list(target_locations or ())
            found = self._door.get_tensors(keys, targets)
            return [target if hit else None for target, hit in zip(targets, found, strict=True)]

        return self._safe("batch_get", ask, lambda: [None] * len(keys))

    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        """Store a flat page."""
        return self.batch_set([key], [value])

    def batch_set(
        self, keys: Sequence[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None
    ) -> bool:
        """Store flat pages; True if all are stored."""
        return self._safe("batch_set", lambda: all(self._door.set_tensors(keys, list(values or ()))), lambda: False)

    # -- v1: straight from and into the host pool

    def batch_get_v1(self, keys: Sequence[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        """Fill pages of the main host pool; host_indices: token slots, page after page."""
        return self._safe("batch_get_v1", lambda: self._door.get(keys, host_indices), lambda: [False] * len(keys))

    def batch_set_v1(self, keys: Sequence[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        """Store pages of the main host pool."""
        return self._safe("batch_set_v1", lambda: self._door.set(keys, host_indices), lambda: [False] * len(keys))

    # -- v2: several pools

    def batch_get_v2(self, transfers: Sequence[Any], extra_info: Any = None) -> dict[Any, list[bool]]:
        """Fill pages of several pools."""
        return self._by_pool("batch_get_v2", "get", transfers)

    def batch_set_v2(self, transfers: Sequence[Any], extra_info: Any = None) -> dict[Any, list[bool]]:
        """Store pages of several pools."""
        return self._by_pool("batch_set_v2", "set", transfers)

    # -- the rest

    def clear(self) -> bool:
        """Remove the pages of this model, deployment and rank set; nothing else that is in the store."""
        try:
            count = self._door.clear()
        except (NotSupportedError, StorageError) as error:
            _log.error("hicache: the store was not cleared: %s", error)
            return False
        except Exception as error:  # noqa: BLE001 - SGLang calls this on its scheduler thread
            _log.error("hicache: the store was not cleared: %s", told(error))
            return False
        _log.info("hicache: %d pages removed", count)
        return True

    def get_stats(self) -> Any:
        """What was moved since the last call, as SGLang's StorageMetrics."""
        return self._metrics(**self._door.traffic.drain()) if self._metrics is not None else None

    def close(self) -> None:
        """Close the store. Idempotent."""
        self._safe("close", self._door.close, lambda: None)

    # -- how

    def _safe(self, what: str, work: Callable[[], T], otherwise: Callable[[], T]) -> T:
        """Never an exception on a data path: the reason is logged once per kind, the page counts as not there."""
        try:
            return work()
        except Exception as error:  # noqa: BLE001 - whatever it is, the engine's thread goes on
            known = isinstance(error, HiCacheError | ValueError)
            self._door.tell(f"{what} {type(error).__name__}", "%s: %s", what, told(error))
            if not known:
                _log.debug("hicache: %s", what, exc_info=True)
            return otherwise()

    def _by_pool(self, what: str, operation: str, transfers: Sequence[Any]) -> dict[Any, list[bool]]:
        wanted = [(t.name, list(getattr(t, "keys", None) or ()), t.host_indices) for t in transfers or ()]
        answers = self._safe(
            what,
            lambda: self._door.move_pools(operation, wanted),
            lambda: [[False] * len(keys) for _, keys, _ in wanted],
        )
        return {name: answer for (name, _, _), answer in zip(wanted, answers, strict=True)}


def _query(transfer: Any) -> tuple[Any, PoolHitPolicy, int]:
    """Name, policy and window of a transfer. A policy that is not known is answered as one that is not supported."""
    policy = getattr(transfer, "hit_policy", None)
    try:
        known = PoolHitPolicy(getattr(policy, "value", policy) or "all_pages")
    except ValueError:
        known = PoolHitPolicy.BLOCK_GROUPS
    return transfer.name, known, max(1, len(getattr(transfer, "keys", None) or ()))


def _result(hit: int, pools: dict[Any, int], lengths: list[int]) -> Any:
    """This version's PoolTransferResult."""
    made = engine.PoolTransferResult(hit, pools)
    if hasattr(made, "restorable_prefix_pages"):
        made.restorable_prefix_pages = lengths
    return made
