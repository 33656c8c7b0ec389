"""One call into the store: admitted by the breaker, its answer checked, everything counted.

Nothing raises here for what a store does. A call that was abandoned while it was inside has told the breaker
already (see workers); what it answers afterwards counts for nothing.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from hicache_core.errors import let_go_of_frames
from hicache_core.storage.answers import ContractViolation
from hicache_core.storage.breaker import Admission, Breaker
from hicache_core.storage.handles import Call
from hicache_core.storage.ledger import StorageLedger
from hicache_core.types import Outcome

T = TypeVar("T")
_log = logging.getLogger(__name__)
_NO_ANSWER = (Outcome.UNAVAILABLE, Outcome.TIMEOUT, Outcome.CANCELLED)


@dataclass(frozen=True, slots=True)
class ExistsAnswer:
    """How many keys from the start are there, and why the run ended.

    reason: "" (all are there), miss, poisoned, foreign, unavailable, breaker_open, timeout, cancelled.
    """

    count: int
    reason: str


class StoreCalls:
    """Calls of one direction. keeps_frames: exceptions go to a person, who wants to know where they were raised."""

    def __init__(self, breaker: Breaker, ledger: StorageLedger, *, keeps_frames: bool = False) -> None:
        self.breaker, self._ledger, self._keeps_frames = breaker, ledger, keeps_frames

    def outcomes(
        self, call: Call, hook: str, pages: int, issue: Callable[[int, int], list[Outcome]]
    ) -> list[Outcome]:
        """`pages` outcomes; see `answers`. UNAVAILABLE where the store gave none."""
        return self.answers(call, hook, pages, issue, Outcome.UNAVAILABLE)

    def answers(self, call: Call, hook: str, keys: int, issue: Callable[[int, int], list[T]], lost: T) -> list[T]:
        """One answer for each of at least one key. issue(lo, hi) makes the hook call for that part and checks it.

        A probe goes with one key; the others follow it if the store answered. `lost` stands for keys that got
        no answer.
        """
        admission = self.breaker.admit()
        if admission is Admission.PASS:
            return self._attempt(call, hook, 0, keys, issue, lost)
        if admission is Admission.BLOCKED:
            self._ledger.event("breaker_refused", keys)
            return [lost] * keys
        try:
            first = self._attempt(call, hook, 0, 1, issue, lost, probe=True)
        finally:
            self.breaker.end_probe()
        if keys == 1:
            return first
        if call.abandoned or self.breaker.admit() is not Admission.PASS:
            return first + [lost] * (keys - 1)
        return first + self._attempt(call, hook, 1, keys, issue, lost)

    def run(self, call: Call, hook: str, keys: int, issue: Callable[[int], int]) -> ExistsAnswer:
        """How many of at least one key are there, from the start; issue(n) asks for the first n."""
        refusal = self.admitted(call, hook, lambda: issue(1))
        if refusal:
            return ExistsAnswer(0, refusal)
        count = self.value(call, hook, lambda: issue(keys))
        if count is None:
            return ExistsAnswer(0, "unavailable")
        return ExistsAnswer(count, "" if count == keys else "miss")

    def admitted(self, call: Call, hook: str, probe: Callable[[], object]) -> str:
        """Empty where a call may be made, else why not. A probe, where one is due, is made by `probe`."""
        admission = self.breaker.admit()
        if admission is Admission.PROBE:
            try:
                answered = self.value(call, hook, probe) is not None
            finally:
                self.breaker.end_probe()
            return "" if answered and self.breaker.admit() is Admission.PASS else "unavailable"
        if admission is Admission.BLOCKED:
            self._ledger.event("breaker_refused")
            return "breaker_open"
        return ""

    def value(self, call: Call, hook: str, issue: Callable[[], T]) -> T | None:
        """What issue() gives, or None where it failed; counted and told to the breaker, already admitted."""
        try:
            answer = issue()
        except BaseException as error:  # noqa: BLE001 - whatever a store raises, the caller recomputes
            self._failed(call, hook, error)
            return None
        if not call.abandoned:
            self.breaker.success()
        return answer

    def _attempt(
        self,
        call: Call,
        hook: str,
        lo: int,
        hi: int,
        issue: Callable[[int, int], list[T]],
        lost: T,
        *,
        probe: bool = False,
    ) -> list[T]:
        try:
            answer = issue(lo, hi)
        except BaseException as error:  # noqa: BLE001 - whatever a store raises, the caller recomputes
            self._failed(call, hook, error)
            return [lost] * (hi - lo)
        if not call.abandoned:
            if answer[0] in _NO_ANSWER and all(outcome in _NO_ANSWER for outcome in answer):
                self._no_answer(answer, probe)
            else:
                self.breaker.success()
        return answer

    def _no_answer(self, answer: Sequence[object], probe: bool) -> None:
        """No page of the call got an answer. A store that merely cancelled has not failed, but proves nothing."""
        if probe or any(outcome is not Outcome.CANCELLED for outcome in answer):
            self.breaker.failure(f"no answer for any of {len(answer)} pages of a call")

    def _failed(self, call: Call, hook: str, error: BaseException) -> None:
        if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            raise error  # a person's, during a call on the caller's own thread
        if isinstance(error, ContractViolation):
            count = self._ledger.violation(error.hook, error.text)
            _log.log(
                _level(count),
                "%s violated the storage contract (%d): %s",
                error.hook,
                count,
                self._ledger.hide(error.text),
            )
        else:
            count = self._ledger.exception(hook, error)
            _log.log(_level(count), "%s raised (%d) %s", hook, count, self._ledger.text_of(error))
        if not call.abandoned:
            self.breaker.failure(self._ledger.text_of(error))
        if not self._keeps_frames:
            let_go_of_frames(error)


def _level(count: int) -> int:
    """A store that keeps failing is logged the 1st, 2nd, 4th, 8th … time; the ledger counts all of them."""
    return logging.WARNING if count & (count - 1) == 0 else logging.DEBUG
