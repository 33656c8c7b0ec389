"""Pages to and from the store: keys held to the rules, codes made outcomes."""

from __future__ import annotations

import time
from collections.abc import Sequence

from hicache_core.errors import StorageError
from hicache_core.storage.legality import legal_key, legal_positions
from hicache_core.types import IoContext, Outcome, Page
from hicache_mooncake.client import Client
from hicache_mooncake.codes import BAD_PARAMETERS, NOT_READY, TRANSFER_FAILED, get_outcome, set_outcome
from hicache_mooncake.lending import Lending
from hicache_mooncake.objects import Objects
from hicache_mooncake.stats import Counters

WRITER_SECONDS = 0.25
"""How long a get waits for a page that another writer has begun."""


class Transfers:
    """The data path of one client. Thread-safe."""

    def __init__(self, client: Client, lending: Lending, counters: Counters) -> None:
        self._client, self._lending, self._counters = client, lending, counters

    def exist(self, keys: Sequence[str]) -> list[bool]:
        """One bool per key; False for an illegal one."""
        if not keys:
            return []
        legal = _legal(keys)
        if legal is None:
            return self._client.exist(keys)
        found = dict(zip(legal, self._client.exist([keys[i] for i in legal]) if legal else (), strict=True))
        return [found.get(i, False) for i in range(len(keys))]

    def get(self, keys: Sequence[str], objects: Objects, ctx: IoContext) -> list[Outcome]:
        """Fill the objects. An illegal key is a MISS."""
        some = _usable(keys, objects)
        if some is not None:
            return _spread(len(keys), some, self.get(_take(keys, some), objects.take(some), ctx), Outcome.MISS)
        if not keys:
            return []
        if len(set(keys)) < len(keys):
            return self._get_again(keys, objects, ctx)

        def move(lo: int, hi: int, part: Objects) -> list[Outcome]:
            return self._get(keys[lo:hi], part, ctx.deadline)

        outcomes = self._lending.bounce.run(objects, ctx.deadline, move, reading=True)
        self._counters.read(outcomes, objects.totals)
        return outcomes

    def set(self, keys: Sequence[str], objects: Objects, ctx: IoContext) -> list[Outcome]:
        """Store the objects; one that is there stays. An illegal key is REJECTED."""
        some = _usable(keys, objects)
        if some is not None:
            return _spread(len(keys), some, self.set(_take(keys, some), objects.take(some), ctx), Outcome.REJECTED)
        if not keys:
            return []
        if len(set(keys)) < len(keys):
            return self._set_once(keys, objects, ctx)

        def move(lo: int, hi: int, part: Objects) -> list[Outcome]:
            return self._set(keys[lo:hi], part)

        outcomes = self._lending.bounce.run(objects, ctx.deadline, move, reading=False)
        self._counters.written(outcomes, objects.totals)
        return outcomes

    def replace(self, keys: Sequence[str], pages: Sequence[Page]) -> list[Outcome]:
        """Store over what is there. The SDK has no such call for parts in a batch, so one page after the other."""
        outcomes = []
        for key, page in zip(keys, pages, strict=True):
            parts = [part for part in page if len(part)]
            if not parts or not legal_key(key):
                outcomes.append(Outcome.REJECTED)
            else:
                outcomes.append(set_outcome(self._client.upsert(key, parts)))
        self._counters.written(outcomes, [sum(map(len, page)) for page in pages])
        return outcomes

    def _get_again(self, keys: Sequence[str], objects: Objects, ctx: IoContext) -> list[Outcome]:
        """The SDK fills one place of a key that stands in a batch several times, so there is a batch for each."""
        outcomes = [Outcome.MISS] * len(keys)
        left = list(range(len(keys)))
        while left:
            first = list({keys[i]: i for i in reversed(left)}.values())
            answer = self.get(_take(keys, first), objects.take(first), ctx)
            for i, outcome in zip(first, answer, strict=True):
                outcomes[i] = outcome
            asked = set(first)
            left = [i for i in left if i not in asked]
        return outcomes

    def _set_once(self, keys: Sequence[str], objects: Objects, ctx: IoContext) -> list[Outcome]:
        """Of equal keys the first is stored, and the others find it."""
        first = list({keys[i]: i for i in reversed(range(len(keys)))}.values())
        answer = self.set(_take(keys, first), objects.take(first), ctx)
        of_key = {keys[i]: outcome for i, outcome in zip(first, answer, strict=True)}
        return [of_key[key] for key in keys]

    def _get(self, keys: Sequence[str], objects: Objects, deadline: float | None) -> list[Outcome]:
        answers = self._client.get(keys, objects)
        if answers == objects.totals:
            return [Outcome.HIT] * len(answers)
        if NOT_READY in answers:
            self._await_writers(keys, objects, answers, deadline)
        outcomes = list(map(get_outcome, answers, objects.totals))
        for i, answer in enumerate(answers):
            if answer == TRANSFER_FAILED and self._has_other_length(keys[i], objects.totals[i]):
                outcomes[i] = Outcome.CORRUPT
        return outcomes

    def _await_writers(
        self, keys: Sequence[str], objects: Objects, answers: list[int], deadline: float | None
    ) -> None:
        """Read what another writer is just putting there: whoever sets such a key is told that it is stored.

        A writer that died leaves its keys so for half a minute (--put_start_discard_timeout_sec), hence the bound.
        """
        until = time.monotonic() + WRITER_SECONDS
        until = until if deadline is None else min(until, deadline)
        pause = 0.002
        while time.monotonic() + pause < until:
            time.sleep(pause)
            pause *= 2
            unready = [i for i, answer in enumerate(answers) if answer == NOT_READY]
            for i, answer in zip(unready, self._client.get(_take(keys, unready), objects.take(unready)), strict=True):
                answers[i] = answer
            if NOT_READY not in answers:
                return

    def _has_other_length(self, key: str, expected: int) -> bool:
        """A page longer than its object fails like a broken transfer; only the length tells them apart."""
        try:
            length = self._client.size(key)
        except StorageError:
            return False
        return (length >= 0 and length != expected) or length == BAD_PARAMETERS

    def _set(self, keys: Sequence[str], objects: Objects) -> list[Outcome]:
        codes = self._client.put(keys, objects)
        if not any(codes):
            return [Outcome.STORED] * len(codes)
        return list(map(set_outcome, codes))


def _legal(keys: Sequence[str]) -> list[int] | None:
    """Indices of the keys that keep the rules; None: all of them."""
    found = legal_positions(keys)
    return None if len(found) == len(keys) else found


def _usable(keys: Sequence[str], objects: Objects) -> list[int] | None:
    """Indices of objects with a legal key and at least one byte; None: all of them."""
    legal = _legal(keys)
    if all(objects.totals):
        return legal
    return [i for i in (range(len(keys)) if legal is None else legal) if objects.totals[i]]


def _take(keys: Sequence[str], indices: Sequence[int]) -> list[str]:
    return [keys[i] for i in indices]


def _spread(count: int, indices: Sequence[int], outcomes: Sequence[Outcome], others: Outcome) -> list[Outcome]:
    whole = [others] * count
    for i, outcome in zip(indices, outcomes, strict=True):
        whole[i] = outcome
    return whole
