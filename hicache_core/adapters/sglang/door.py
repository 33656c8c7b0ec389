"""Between SGLang's storage interface and a storage session: pools, hashes and verdicts, and no storage logic.

Everything that could go wrong on a store is the session's business: it answers with outcomes, in time. What is
raised here is a caller's mistake (ValueError, MisuseError); `storage.py` turns it into "not stored" or "not there".
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from hicache_core.adapters.sglang.config import WHERE, DoorConfig
from hicache_core.adapters.sglang.identity import Ranks, byte_form, main_identity, rank_sharded, side_salt
from hicache_core.adapters.sglang.indices import as_hashes, page_slots, salted
from hicache_core.adapters.sglang.pools import EnginePool, FlatPages, NoRegions, as_bytes, has_bytes
from hicache_core.adapters.sglang.traffic import Traffic
from hicache_core.errors import ConfigError, MisuseError
from hicache_core.storage.opening import open_session
from hicache_core.storage.prefixes import restorable
from hicache_core.storage.session import StorageSession
from hicache_core.types import Outcome, PoolHitPolicy, PoolName, PoolTransfer, PoolTransferResult

_log = logging.getLogger("hicache_core.adapters.sglang")
QUERY_KEYS = 4096
"""Hashes in one query of the session, so that a long prompt is answered with what was found by the deadline."""
_QUIET_SECONDS = 30.0
_EXPECTED = frozenset({Outcome.HIT, Outcome.STORED, Outcome.EXISTS, Outcome.MISS})

Lent: TypeAlias = EnginePool | FlatPages | None
"""A pool as it can be reached; None for one without bytes."""


Wanted: TypeAlias = tuple[Any, Sequence[str], Any]
"""Pool, keys and host indices of one entry of a v2 call."""


@dataclass(frozen=True, slots=True)
class SidePool:
    """A pool of a v2 call. salt: mixed into its hashes; empty: nothing. shared: one rank writes for all."""

    lent: Lent
    salt: bytes
    shared: bool


@dataclass(frozen=True, slots=True)
class Opened:
    """What is there between `open` and `close`. One object: a thread sees all of it or none."""

    session: StorageSession
    pool: Any
    main: Lent


class Door:
    """One engine process's way to one store. Thread-safe after `open`."""

    def __init__(self, config: DoorConfig, ranks: Ranks, model: str, weights: str) -> None:
        self.config, self.ranks = config, ranks
        self._model, self._weights = model, weights
        self._opened: Opened | None = None
        self._side: dict[PoolName, SidePool] = {}
        self.traffic = Traffic()
        self._told: Counter[str] = Counter()
        self._quiet_until = 0.0

    # -- pools

    def open(self, pool: Any) -> None:
        """Open the session for the engine's main pool. Again with the same pool: nothing.

        Raises ConfigError, PluginError, OpenError; nothing is left open then.
        """
        if self._opened is not None and pool is self._opened.pool:
            return
        self.close()
        lent = self._reach(PoolName.KV, pool)
        form = _form(pool, lent)
        options = self.config.options
        identity = main_identity(pool, form, self._model, self._weights, self.ranks, options.tenant)
        session = open_session(
            options.choice(WHERE),
            identity=identity,
            settings=options.session_settings(),
            transforms=options.transforms,
            observers=options.observers,
            rank=self.ranks.rank,
            world_size=self.ranks.world_size,
        )
        try:
            for one in (lent, *(side.lent for side in self._side.values())):  # some may have come before this one
                if isinstance(one, EnginePool):
                    session.register_host_pool(one)
        except BaseException:
            session.close()
            raise
        self._opened = Opened(session, pool, lent)

    def attach(self, name: Any, pool: Any) -> None:
        """Make a further pool known by its name. Raises ConfigError for one that cannot be stored."""
        known = _pool_name(name)
        if known is None:
            self.tell(f"pool {name}", f"host pool {name!s} is not known to hicache: it is not stored and never hits")
            return
        if known is PoolName.KV:
            return
        lent = self._reach(known, pool)
        salt = side_salt(known, pool, _form(pool, lent), self.ranks)
        if self._opened is not None:
            session, old = self._opened.session, self._side.get(known)
            if old is not None and isinstance(old.lent, EnginePool):
                session.unregister_host_pool(old.lent)
            if isinstance(lent, EnginePool):
                session.register_host_pool(lent)
        self._side[known] = SidePool(lent, salt, not rank_sharded(known, pool, self.ranks))

    def _reach(self, name: PoolName, pool: Any) -> Lent:
        if not has_bytes(pool):
            return None
        try:
            view = EnginePool(name, pool)
            if name is not PoolName.KV or self.config.zero_copy or view.flat:
                return view
        except NoRegions as error:
            why = str(error)
        else:
            why = "its flat pages are no permutation of its regions"
        try:
            return FlatPages(name, pool)
        except (AttributeError, NotImplementedError, ValueError, TypeError, RuntimeError) as error:
            kind = f"host pool {name} ({type(pool).__name__}, layout {getattr(pool, 'layout', 'unknown')})"
            if name is PoolName.KV and not self.config.zero_copy and hasattr(pool, "get_page_buffer_meta"):
                raise ConfigError(f'{kind} has no flat pages: add "interface_v1": 1 ({error})') from error
            raise ConfigError(
                f"{kind} gives neither the addresses of its pages ({why}) nor copies ({error})"
            ) from error

    @property
    def session(self) -> StorageSession:
        """The open session. Raises MisuseError before `open` and after `close`."""
        return self._now.session

    @property
    def _now(self) -> Opened:
        opened = self._opened
        if opened is None:
            raise MisuseError("no host pool has been registered with this storage backend, or it is closed")
        return opened

    # -- queries

    def exists(self, keys: Sequence[str]) -> int:
        """Length of the run of stored pages from the start, of the main pool."""
        now = self._now
        if now.main is None:
            return len(keys)
        session = now.session
        deadline = time.monotonic() + session.settings.timeout
        found = 0
        for start in range(0, len(keys), QUERY_KEYS):
            part = as_hashes(keys[start : start + QUERY_KEYS])
            count = session.exists(part, timeout=max(0.0, deadline - time.monotonic()))
            found += count
            if count < len(part):
                break
        return found

    def exists_v2(self, keys: Sequence[str], queries: Sequence[tuple[Any, PoolHitPolicy, int]]) -> PoolTransferResult:
        """Every prefix that can be restored over the main pool and others. queries: name, policy, trailing pages."""
        now, hashes = self._now, as_hashes(keys)
        transfers = []
        for name, policy, trailing in queries:
            known = _pool_name(name)
            side = None if known is None else self._side.get(known)
            if known is None or (side is None and known is not PoolName.KV):
                return PoolTransferResult(0, [])
            if side is None or (side.lent is None and policy is not PoolHitPolicy.BLOCK_GROUPS):
                continue  # the main pool is asked anyway; a pool without bytes is always there
            transfers.append(PoolTransfer(known, salted(hashes, side.salt), None, policy, trailing))
        if now.main is not None or any(t.policy is PoolHitPolicy.BLOCK_GROUPS for t in transfers):
            return now.session.exists_v2(hashes, transfers)
        return self._exists_beside(now.session, len(keys), transfers)

    def _exists_beside(
        self, session: StorageSession, run: int, transfers: Sequence[PoolTransfer]
    ) -> PoolTransferResult:
        """The same where the main pool has no bytes: only the others decide."""
        for transfer in transfers:
            if run and transfer.policy is PoolHitPolicy.ALL_PAGES:
                run = session.exists(transfer.keys[:run], pool=transfer.name.value)
        windows = [t for t in transfers if t.policy is PoolHitPolicy.TRAILING_PAGES]
        return restorable(run, [(t, session.contains(t.keys[:run], pool=t.name.value)) for t in windows])

    # -- pages of the main pool

    def get(self, keys: Sequence[str], indices: Any) -> list[bool]:
        """Fill pages of the main pool. indices: its token slots, as of `page_slots`."""
        now = self._now
        if now.main is None:
            return [True] * len(keys)
        return self._move(now.session, PoolName.KV, now.main, as_hashes(keys), indices, "get")

    def set(self, keys: Sequence[str], indices: Any) -> list[bool]:
        """Store pages of the main pool. True without storing on a rank whose pages another rank writes."""
        now = self._now
        if now.main is None or not self.ranks.writer:
            return [True] * len(keys)
        return self._move(now.session, PoolName.KV, now.main, as_hashes(keys), indices, "set")

    def get_tensors(self, keys: Sequence[str], tensors: Sequence[Any]) -> list[bool]:
        """Fill flat pages of the main pool."""
        if len(tensors) != len(keys):
            raise ValueError(f"{len(keys)} keys, but {len(tensors)} tensors")
        pages = [[as_bytes(tensor)] for tensor in tensors]
        session, hashes = self.session, as_hashes(keys)
        return self._timed("get", lambda: session.get(hashes, pages), sum(page[0].nbytes for page in pages))

    def set_tensors(self, keys: Sequence[str], tensors: Sequence[Any]) -> list[bool]:
        """Store flat pages of the main pool."""
        session = self.session
        if not self.ranks.writer:
            return [True] * len(keys)
        if len(tensors) != len(keys):
            raise ValueError(f"{len(keys)} keys, but {len(tensors)} tensors")
        pages = [[as_bytes(tensor.contiguous())] for tensor in tensors]
        hashes = as_hashes(keys)
        return self._timed("set", lambda: session.set(hashes, pages), sum(page[0].nbytes for page in pages))

    # -- pages of any pool

    def move_pools(self, operation: str, wanted: Sequence[Wanted]) -> list[list[bool]]:
        """One answer per entry of a v2 call. operation: get or set. Pools with addresses go in one call."""
        session = self.session
        answers = [[False] * len(keys) for _, keys, _ in wanted]
        together: dict[PoolName, tuple[int, PoolTransfer, int]] = {}
        for number, (name, keys, indices) in enumerate(wanted):
            side = self._side_of(name)
            if side is None:
                self.tell(f"pool {name}", f"host pool {name!s} was never registered: it is not stored and never hits")
                continue
            if side.lent is None or (operation == "set" and side.shared and not self.ranks.writer):
                answers[number] = [True] * len(keys)
                continue
            known, hashes = PoolName(str(name)), as_hashes(keys)
            hashes = salted(hashes, side.salt) if side.salt else hashes
            try:
                if isinstance(side.lent, EnginePool) and known not in together:
                    slots = page_slots(indices, len(keys), side.lent.page_size)
                    nbytes = side.lent.page_nbytes * len(keys)
                    together[known] = (number, PoolTransfer(known, hashes, slots), nbytes)
                else:
                    answers[number] = self._move(session, known, side.lent, hashes, indices, operation)
            except ValueError as error:
                self.tell(f"{operation} {known}", "%s of pool %s: %s", operation, known, error)
        transfers = [transfer for _, transfer, _ in together.values()]
        if transfers:
            moved = self._move_together(session, operation, transfers, sum(n for _, _, n in together.values()))
            for number, transfer, _ in together.values():
                answers[number] = moved[transfer.name]
        return answers

    def _move_together(
        self, session: StorageSession, operation: str, transfers: Sequence[PoolTransfer], nbytes: int
    ) -> dict[PoolName, list[bool]]:
        moved: dict[PoolName, list[Outcome]] = {}

        def move() -> list[Outcome]:
            moved.update(session.get_v2(transfers) if operation == "get" else session.set_v2(transfers))
            return [outcome for outcomes in moved.values() for outcome in outcomes]

        self._timed(operation, move, nbytes)
        return {name: [outcome.success for outcome in outcomes] for name, outcomes in moved.items()}

    def _side_of(self, name: Any) -> SidePool | None:
        known = _pool_name(name)
        if known is PoolName.KV:
            return SidePool(self._now.main, b"", True)
        return None if known is None else self._side.get(known)

    def _move(
        self,
        session: StorageSession,
        name: PoolName,
        lent: EnginePool | FlatPages,
        hashes: Sequence[str],
        indices: Any,
        operation: str,
    ) -> list[bool]:
        slots = page_slots(indices, len(hashes), lent.page_size)
        nbytes = lent.page_nbytes * len(hashes)
        if isinstance(lent, EnginePool):
            move = session.get_v1 if operation == "get" else session.set_v1
            return self._timed(operation, lambda: move(hashes, slots, pool=name.value), nbytes)
        where: list[int] = slots.tolist()
        if operation == "set":
            copies = [[as_bytes(lent.read(slot).contiguous())] for slot in where]
            return self._timed("set", lambda: session.set(hashes, copies, pool=name.value), nbytes)
        pages = [lent.empty() for _ in where]
        targets = [[as_bytes(page)] for page in pages]
        found = self._timed("get", lambda: session.get(hashes, targets, pool=name.value), nbytes)
        for slot, page, hit in zip(where, pages, found, strict=True):
            if hit:
                lent.write(slot, page)
        return found

    def _timed(self, operation: str, move: Callable[[], list[Outcome]], nbytes: int) -> list[bool]:
        start = time.perf_counter()
        outcomes = move()
        good = [outcome.success for outcome in outcomes]
        self.traffic.add(operation, sum(good), nbytes, len(good), time.perf_counter() - start)
        if not all(good):
            self._complain(operation, outcomes)
        return good

    # -- the rest

    def clear(self) -> int:
        """Remove what is in this session's namespace. Raises NotSupportedError, StorageError."""
        return self.session.clear()

    def close(self) -> None:
        """Close the session. Idempotent; pools that were attached are forgotten."""
        opened, self._opened = self._opened, None
        if opened is None:
            return
        self._side = {}
        report = opened.session.close()
        if not report.clean:
            errors = "; ".join(report.errors) or "no error"
            _log.warning("hicache: store closed with %d abandoned calls: %s", report.abandoned, errors)

    def tell(self, key: str, message: str, *args: object) -> None:
        """One log line per key, however often it comes."""
        self._told[key] += 1
        if self._told[key] == 1:
            _log.warning("hicache: " + message, *args)

    def _complain(self, operation: str, outcomes: Sequence[Outcome]) -> None:
        wrong = [outcome for outcome in outcomes if outcome not in _EXPECTED]
        now = time.monotonic()
        if not wrong or now < self._quiet_until:
            return
        self._quiet_until = now + _QUIET_SECONDS
        counts = ", ".join(f"{count} {outcome.value}" for outcome, count in Counter(wrong).items())
        session = self._opened.session if self._opened else None
        why = "; ".join([*session.status().problems, *session.ledger.recent_errors[-1:]]) if session else "closed"
        verb = "read" if operation == "get" else "stored"
        _log.warning(
            "hicache: of %d pages not %s: %s%s (further ones within %.0f s are not logged)",
            len(outcomes),
            verb,
            counts,
            f": {why}" if why else "",
            _QUIET_SECONDS,
        )


def _form(pool: Any, lent: Lent) -> str:
    if isinstance(lent, EnginePool):
        return byte_form(pool, lent.sizes.tolist(), "flat" if lent.flat else "regions")
    return byte_form(pool, [lent.page_nbytes], "flat") if lent is not None else byte_form(pool, [], "none")


def _pool_name(name: Any) -> PoolName | None:
    try:
        return PoolName(str(name))
    except ValueError:
        return None
