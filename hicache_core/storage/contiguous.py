"""For stores whose client moves one contiguous buffer per object: a backend of them from five calls of the client.

A page comes as several buffers (the seal, then its regions) and must become one object, or a crash between two of
them would leave half a page. So pages are put together in arenas, memory that the client may have registered, and
taken apart again: one copy per direction, as many bytes as the page has.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from hicache_core.plugin.spec import hookimpl, pagewise
from hicache_core.storage.legality import legal_positions
from hicache_core.storage.lender import Lender
from hicache_core.storage.staging import copy_page
from hicache_core.types import IoContext, Outcome, Page

ALIGNMENT = 64
"""Bytes between the starts of two objects in an arena are a multiple of this."""

Stored: TypeAlias = "int | Outcome"
"""Bytes of the object that was read, its header left out; or why it was not."""


class ContiguousClient(Protocol):
    """What a store's client is asked for. Every list has one entry per key, in order. May raise: see the spec."""

    header_bytes: int
    """Bytes that the client keeps in front of each object for itself; the buffers it is given have room for them."""

    def exists(self, keys: Sequence[str], ctx: IoContext) -> list[bool]:
        """Whether each object is there. Raises where the store did not answer."""

    def put(self, keys: Sequence[str], objects: Sequence[memoryview], ctx: IoContext) -> list[Outcome]:
        """Store each object, atomically: STORED, or EXISTS where the store keeps the first; or why not."""

    def get(self, keys: Sequence[str], objects: Sequence[memoryview], ctx: IoContext) -> list[Stored]:
        """Fill each buffer; the stored length where it is not the buffer's says that the object is damaged."""

    def close(self) -> None:
        """Release what the client holds. Called once; nothing is under way."""


class RemovingClient(ContiguousClient, Protocol):
    """A client that can also remove."""

    def remove(self, keys: Sequence[str], ctx: IoContext) -> list[Outcome]:
        """Remove each object: HIT or MISS."""


class Arenas(Lender[memoryview]):
    """Equal pieces of memory, each lent to one call at a time. nbytes: of each."""

    def __init__(self, memories: Sequence[memoryview]) -> None:
        super().__init__(memories)
        self.nbytes = min(memory.nbytes for memory in memories)


class ContiguousBackend:
    """A backend over a `ContiguousClient`: no state of its own but the arenas.

    keeps_first: the client's put leaves an object that is there alone; otherwise keys are asked for first, and of two
    writers of one key at the same moment the last stays, which is the same page or else a foreign one for the guard.
    """

    def __init__(self, client: ContiguousClient, arenas: Arenas, *, keeps_first: bool = False) -> None:
        self._client, self._arenas, self._keeps_first = client, arenas, keeps_first
        self._closing = threading.Lock()
        self._closed = False

    @hookimpl
    def batch_exists(self, keys: Sequence[str], ctx: IoContext) -> int:
        """See the spec."""
        present = self.batch_contains(keys, ctx)
        return next((index for index, there in enumerate(present) if not there), len(present))

    @hookimpl
    def batch_contains(self, keys: Sequence[str], ctx: IoContext) -> list[bool]:
        """See the spec."""
        legal = legal_positions(keys)
        found = dict(zip(legal, self._client.exists([keys[index] for index in legal], ctx), strict=True))
        return [found.get(index, False) for index in range(len(keys))]

    @hookimpl
    @pagewise
    def batch_get(self, keys: Sequence[str], pages: Sequence[Page], ctx: IoContext) -> list[Outcome]:
        """See the spec."""
        outcomes = [Outcome.MISS] * len(keys)
        legal = legal_positions(keys)

        def move(some: list[int], objects: list[memoryview]) -> None:
            stored = self._client.get([keys[index] for index in some], objects, ctx)
            for index, whole, answer in zip(some, objects, stored, strict=True):
                data = whole[self._client.header_bytes :]
                if isinstance(answer, Outcome):
                    outcomes[index] = answer
                elif answer != data.nbytes:
                    outcomes[index] = Outcome.CORRUPT
                else:
                    copy_page(pages[index], [data])
                    ctx.verify_page(index)
                    outcomes[index] = Outcome.HIT

        self._staged(legal, pages, outcomes, ctx, move, too_large=Outcome.MISS)  # nothing so large was ever stored
        return outcomes

    @hookimpl
    @pagewise
    def batch_set(self, keys: Sequence[str], pages: Sequence[Page], ctx: IoContext) -> list[Outcome]:
        """See the spec."""
        outcomes = [Outcome.REJECTED] * len(keys)
        wanted = legal_positions(keys)
        if not (ctx.replace or self._keeps_first):
            present = self._client.exists([keys[index] for index in wanted], ctx)
            for index, there in zip(wanted, present, strict=True):
                if there:
                    outcomes[index] = Outcome.EXISTS
            wanted = [index for index, there in zip(wanted, present, strict=True) if not there]
        first: dict[str, int] = {}
        if not ctx.replace:  # of equal keys the first is stored, and the others find it
            for index in wanted:
                first.setdefault(keys[index], index)
            again = [index for index in wanted if first[keys[index]] != index]
            wanted = [index for index in wanted if first[keys[index]] == index]

        def move(some: list[int], objects: list[memoryview]) -> None:
            for index, whole in zip(some, objects, strict=True):
                ctx.seal_page(index)
                copy_page([whole[self._client.header_bytes :]], pages[index])
            for index, answer in zip(some, self._client.put([keys[i] for i in some], objects, ctx), strict=True):
                outcomes[index] = answer

        self._staged(wanted, pages, outcomes, ctx, move, too_large=Outcome.REJECTED)
        if not ctx.replace:
            for index in again:
                stored = outcomes[first[keys[index]]]
                outcomes[index] = Outcome.EXISTS if stored else stored
        return outcomes

    @hookimpl
    def close(self) -> None:
        """See the spec. The client is closed by the last call that still uses its memory, where there is one."""
        with self._closing:
            closed, self._closed = self._closed, True
        if not closed:
            self._arenas.retire(self._client.close)

    def _staged(
        self,
        wanted: list[int],
        pages: Sequence[Page],
        outcomes: list[Outcome],
        ctx: IoContext,
        move: Callable[[list[int], list[memoryview]], None],
        *,
        too_large: Outcome,
    ) -> None:
        """Call `move` with as many pages at a time as one arena holds, and their places in it."""
        if not wanted:
            return
        header = self._client.header_bytes
        sizes = {index: header + sum(buffer.nbytes for buffer in pages[index]) for index in wanted}
        with self._arenas.borrow(ctx.deadline) as arena:
            if arena is None:
                for index in wanted:
                    outcomes[index] = Outcome.TIMEOUT
                return
            some: list[int] = []
            objects: list[memoryview] = []
            used = 0
            for index in wanted:
                size = sizes[index]
                if size > arena.nbytes:
                    outcomes[index] = too_large
                    continue
                if used + size > arena.nbytes:
                    move(some, objects)
                    some, objects, used = [], [], 0
                some.append(index)
                objects.append(arena[used : used + size])
                used += -(-size // ALIGNMENT) * ALIGNMENT
            if some:
                move(some, objects)


class RemovingBackend(ContiguousBackend):
    """A `ContiguousBackend` whose client can also remove."""

    def __init__(self, client: RemovingClient, arenas: Arenas, *, keeps_first: bool = False) -> None:
        super().__init__(client, arenas, keeps_first=keeps_first)
        self._removing = client

    @hookimpl
    def delete(self, keys: Sequence[str], ctx: IoContext) -> list[Outcome]:
        """See the spec."""
        outcomes = [Outcome.MISS] * len(keys)
        legal = legal_positions(keys)
        for index, answer in zip(legal, self._removing.remove([keys[index] for index in legal], ctx), strict=True):
            outcomes[index] = answer
        return outcomes
