"""What the tier knows of keys: verdicts of lookups, and loads that failed.

Everything here runs under the manager's lock, so there is no other. A verdict stays as long as a request that asked
for it: a scheduler asks again and again until all keys of a prompt have an answer in the same step.

A key whose load failed is a MISS from then on, until it was stored again. Answering HIT for it would make the
scheduler promote, fail and ask again without end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MOST_VERDICTS = 262_144
"""Verdicts kept at once: two prompts of two million tokens at 16 tokens a block. The oldest go first."""
MOST_FAILED = 65_536
"""Failed loads remembered. One that is forgotten costs another failed load."""


@dataclass(slots=True)
class _Verdict:
    found: bool | None
    """None while the query runs."""
    requests: int


class Verdicts:
    """Owned by whoever holds the manager's lock."""

    def __init__(self, most: int = MOST_VERDICTS, most_failed: int = MOST_FAILED) -> None:
        self._most, self._most_failed = most, most_failed
        self._known: dict[bytes, _Verdict] = {}
        self._by_request: dict[str, set[bytes]] = {}
        self._unsent: list[bytes] = []
        self._asked: set[bytes] = set()
        self._failed: dict[bytes, None] = {}

    def of(self, key: bytes, request: str) -> bool | None:
        """Whether the store has it; None where it is not known yet, and then it is among the next questions."""
        if key in self._failed:
            return False
        verdict = self._known.get(key)
        mine = self._by_request.setdefault(request, set())
        if verdict is None:
            verdict = self._known[key] = _Verdict(None, 0)
            if key not in self._asked:
                self._unsent.append(key)
            if len(self._known) > self._most:
                del self._known[next(iter(self._known))]
            mine.discard(key)
        if key not in mine:
            mine.add(key)
            verdict.requests += 1
        return verdict.found

    def take_questions(self) -> list[bytes]:
        """The keys that were asked for since the last time, for one query."""
        questions, self._unsent = self._unsent, []
        self._asked.update(questions)
        return questions

    def answer(self, keys: Sequence[bytes], found: Iterable[bool]) -> None:
        """What a query said. Nobody may want to know any more; a store or failure meanwhile knows better."""
        for key, there in zip(keys, found, strict=True):
            self._asked.discard(key)
            verdict = self._known.get(key)
            if verdict is not None and verdict.found is None:
                verdict.found = there

    def failed(self, keys: Iterable[bytes]) -> None:
        """Their load failed."""
        for key in keys:
            self._failed.pop(key, None)
            self._failed[key] = None
            verdict = self._known.get(key)
            if verdict is not None:
                verdict.found = False
        while len(self._failed) > self._most_failed:
            del self._failed[next(iter(self._failed))]

    def stored(self, keys: Iterable[bytes]) -> None:
        """They are in the store now."""
        for key in keys:
            self._failed.pop(key, None)
            verdict = self._known.get(key)
            if verdict is not None:
                verdict.found = True

    def request_ended(self, request: str) -> None:
        """Forget what only this request asked for."""
        for key in self._by_request.pop(request, ()):
            verdict = self._known.get(key)
            if verdict is not None:
                verdict.requests -= 1
                if verdict.requests <= 0:
                    del self._known[key]

    @property
    def waiting(self) -> bool:
        """Whether a question has no answer yet."""
        return bool(self._unsent or self._asked)

    def __len__(self) -> int:
        return len(self._known)
