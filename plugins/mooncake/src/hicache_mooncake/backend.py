"""The hooks of backend `mooncake`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from hicache_core.errors import MisuseError
from hicache_core.plugin.spec import hookimpl
from hicache_core.storage.gate import Gate, tell_forked_child
from hicache_core.storage.legality import legal_key, legal_namespace
from hicache_core.storage.prefixes import restorable
from hicache_core.types import (
    Buffer,
    HostPoolView,
    IoContext,
    Outcome,
    Page,
    PoolName,
    PoolTransfer,
    PoolTransferResult,
    Slots,
)
from hicache_mooncake import metrics
from hicache_mooncake.client import Client
from hicache_mooncake.codes import delete_outcome
from hicache_mooncake.lending import Lending
from hicache_mooncake.objects import Objects, of_pages, of_pool
from hicache_mooncake.options import MooncakeOptions
from hicache_mooncake.stats import Counters, MooncakeStats
from hicache_mooncake.transfer import Transfers

_CLOSE_PATIENCE_SECONDS = 3.0


class MooncakeBackend:
    """Pages as objects, one each: the seal and the regions as parts of one put. Thread-safe."""

    def __init__(self, client: Client, options: MooncakeOptions) -> None:
        self._client, self._options = client, options
        self._lending = Lending(client, options)
        self._counters = Counters()
        self._transfers = Transfers(client, self._lending, self._counters)
        self._gate = Gate("Mooncake store", self._release)
        tell_forked_child(self)

    # -- what is there

    @hookimpl
    def batch_exists(self, keys: Sequence[str], ctx: IoContext) -> int:
        """One question to the master for all keys."""
        there = self.batch_contains(keys, ctx)
        return there.index(False) if False in there else len(there)

    @hookimpl
    def batch_contains(self, keys: Sequence[str], ctx: IoContext) -> list[bool]:
        """One question to the master for all keys."""
        with self._gate.call():
            return self._transfers.exist(keys)

    @hookimpl
    def batch_exists_v2(
        self, keys: Sequence[str], pool_transfers: Sequence[PoolTransfer], ctx: IoContext
    ) -> PoolTransferResult:
        """One question to the master for the keys of all pools."""
        asked = list(keys)
        for transfer in pool_transfers:
            asked += transfer.keys
        there = self.batch_contains(asked, ctx)
        run = there.index(False) if False in there[: len(keys)] else len(keys)
        present, start = [], len(keys)
        for transfer in pool_transfers:
            present.append((transfer, there[start : start + run]))
            start += len(transfer.keys)
        return restorable(run, present)

    # -- pages as buffers

    @hookimpl
    def batch_get(self, keys: Sequence[str], pages: Sequence[Page], ctx: IoContext) -> list[Outcome]:
        """Straight into the buffers."""
        with self._gate.call():
            return self._transfers.get(keys, of_pages(pages), ctx)

    @hookimpl
    def batch_set(self, keys: Sequence[str], pages: Sequence[Page], ctx: IoContext) -> list[Outcome]:
        """Straight from the buffers; with ctx.replace through the SDK's buffer, page by page."""
        with self._gate.call():
            if ctx.replace:
                return self._transfers.replace(keys, pages)
            return self._transfers.set(keys, of_pages(pages), ctx)

    # -- pages in registered pools

    @hookimpl
    def batch_get_v1(self, keys: Sequence[str], host_indices: Slots, ctx: IoContext) -> list[Outcome]:
        """Straight into the registered KV pool."""
        with self._gate.call():
            return self._transfers.get(keys, self._objects(PoolName.KV, host_indices, ctx.seals), ctx)

    @hookimpl
    def batch_set_v1(self, keys: Sequence[str], host_indices: Slots, ctx: IoContext) -> list[Outcome]:
        """Straight from the registered KV pool."""
        if ctx.replace and isinstance(ctx.pages, Sequence):
            return self.batch_set(keys, ctx.pages, ctx)
        with self._gate.call():
            return self._transfers.set(keys, self._objects(PoolName.KV, host_indices, ctx.seals), ctx)

    @hookimpl
    def batch_get_v2(self, transfers: Sequence[PoolTransfer], ctx: IoContext) -> dict[PoolName, list[Outcome]]:
        """One call of the SDK for all pools."""
        with self._gate.call():
            keys, objects = self._all_pools(transfers, ctx)
            return _by_pool(transfers, self._transfers.get(keys, objects, ctx))

    @hookimpl
    def batch_set_v2(self, transfers: Sequence[PoolTransfer], ctx: IoContext) -> dict[PoolName, list[Outcome]] | None:
        """One call of the SDK for all pools."""
        if ctx.replace:
            return None  # the default goes by buffers, pool after pool
        with self._gate.call():
            keys, objects = self._all_pools(transfers, ctx)
            return _by_pool(transfers, self._transfers.set(keys, objects, ctx))

    # -- memory

    @hookimpl
    def register_region(self, buffer: Buffer) -> None:
        """Memory of the session: seals and staging. MisuseError where it is registered already."""
        with self._gate.call():
            self._lending.add_region(buffer)

    @hookimpl
    def unregister_region(self, buffer: Buffer) -> None:
        """Take it back."""
        with self._gate.call():
            self._lending.remove_region(buffer)

    @hookimpl
    def register_host_pool(self, view: HostPoolView) -> None:
        """A pool whose pages go straight. MisuseError: registered twice. CapacityError: larger than the store."""
        with self._gate.call():
            self._lending.add_pool(view)

    @hookimpl
    def unregister_host_pool(self, view: HostPoolView) -> None:
        """Take it back."""
        with self._gate.call():
            self._lending.remove_pool(view)

    @hookimpl
    def allocate_host_memory(self, nbytes: int, alignment: int) -> Buffer | None:
        """Standalone storage: memory shared with the standalone client. None otherwise."""
        with self._gate.call():
            return self._lending.allocate(nbytes, alignment)

    # -- administration

    @hookimpl
    def delete(self, keys: Sequence[str], ctx: IoContext) -> list[Outcome]:
        """By force: a lease that a question has granted does not keep a page."""
        with self._gate.call():
            legal = [key for key in keys if legal_key(key)]
            first = dict.fromkeys(legal)  # of equal keys the first is there, and the others are not any more
            codes = self._client.remove(list(first)) if first else []
            left = dict(zip(first, map(delete_outcome, codes), strict=True))
            outcomes = []
            for key in keys:
                outcomes.append(left.get(key, Outcome.MISS))
                if left.get(key) is Outcome.HIT:
                    left[key] = Outcome.MISS
            return outcomes

    @hookimpl
    def clear(self, namespace: str) -> int:
        """By one regular expression on the master."""
        with self._gate.call():
            if not legal_namespace(namespace):
                return 0
            return self._client.remove_matching(f"^{re.escape(namespace)}/")

    @hookimpl
    def scan(
        self, namespace: str | None, cursor: str | None
    ) -> tuple[list[tuple[str, int, float]], str | None] | None:
        """Keys that the master lists, in order. It keeps no time stamps: now. None without metrics_address."""
        if not self._options.metrics_address:
            return None
        with self._gate.call():
            return metrics.scan(self._options, self._client, namespace, cursor)

    @hookimpl
    def stats(self) -> MooncakeStats:
        """Own counters, and what the master says of the store as a whole where metrics_address is set."""
        with self._gate.call():
            counted, store = self._counters, metrics.store_size(self._options)
            return MooncakeStats(
                pages_read=counted.pages_read,
                pages_written=counted.pages_written,
                bytes_read=counted.bytes_read,
                bytes_written=counted.bytes_written,
                registered_bytes=self._lending.registered_bytes,
                master_trouble=self._client.latch.trouble,
                master_silences=self._client.latch.trips,
                master_keys=store.keys if store else None,
                capacity_bytes=store.capacity if store else None,
                allocated_bytes=store.allocated if store else None,
            )

    @hookimpl
    def close(self) -> None:
        """Unregister and unmount; waits a little for calls that are still inside, the last of which does it."""
        self._gate.close(_CLOSE_PATIENCE_SECONDS)

    def leave_to_parent(self) -> None:
        """In a forked child: the SDK's threads are not here, so nothing of it may run, not even its destructor."""
        self._gate.abandon()
        self._client.abandon()

    def _release(self) -> None:
        self._lending.release()
        self._client.close()

    def _objects(self, name: PoolName, slots: Slots, seals: object) -> Objects:
        if isinstance(seals, Mapping):
            seals = seals.get(name)
        return of_pool(self._lending.pool(name), slots, seals if isinstance(seals, Sequence) else None)

    def _all_pools(self, transfers: Sequence[PoolTransfer], ctx: IoContext) -> tuple[list[str], Objects]:
        keys: list[str] = []
        objects = Objects([], [], [])
        for transfer in transfers:
            if transfer.slots is None:
                raise MisuseError(f"a v2 transfer of pool {transfer.name} names no slots")
            keys += transfer.keys
            objects.extend(self._objects(transfer.name, transfer.slots, ctx.seals))
        return keys, objects


def _by_pool(transfers: Sequence[PoolTransfer], outcomes: list[Outcome]) -> dict[PoolName, list[Outcome]]:
    answers, start = {}, 0
    for transfer in transfers:
        answers[transfer.name] = outcomes[start : start + len(transfer.keys)]
        start += len(transfer.keys)
    return answers
