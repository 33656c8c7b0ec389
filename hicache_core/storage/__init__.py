"""Storage sessions: a store behind namespace, seal, deadline, breaker and healing budget (the storage contract)."""

from __future__ import annotations

from hicache_core.storage.breaker import Breaker, BreakerStatus
from hicache_core.storage.calls import ExistsAnswer
from hicache_core.storage.handles import Handle
from hicache_core.storage.ledger import StorageLedger
from hicache_core.storage.opening import open_session
from hicache_core.storage.session import PoolQuery, StorageSession
from hicache_core.storage.settings import CloseReport, SessionSettings, SessionStatus
from hicache_core.storage.transforms import Transform

__all__ = [
    "Breaker",
    "BreakerStatus",
    "CloseReport",
    "ExistsAnswer",
    "Handle",
    "PoolQuery",
    "SessionSettings",
    "SessionStatus",
    "StorageLedger",
    "StorageSession",
    "Transform",
    "open_session",
]
