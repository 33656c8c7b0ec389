"""The circuit breaker of one direction: a store that keeps failing is not asked for a while."""

from __future__ import annotations

import threading
from enum import Enum

import msgspec

from hicache_core.clock import Clock, monotonic

FAILURES_TO_OPEN = 5
ABANDONED_ALLOWED = 2
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 10.0


class Admission(Enum):
    """Whether a call may go to the store."""

    PASS = "pass"
    PROBE = "probe"
    """Half-open: this call, with one page, decides. Its thread tells how it went, and then calls `end_probe`."""
    BLOCKED = "blocked"


class BreakerStatus(msgspec.Struct, frozen=True):
    """A breaker, for status and doctor. retry_in: seconds until the next probe, 0 unless open."""

    state: str
    reason: str
    failures_in_row: int
    abandoned_now: int
    opened: int
    retry_in: float


class Breaker:
    """Closed → open after 5 failures in a row, or while more than 2 abandoned calls have not returned.

    Open → half-open after 1 s, doubling to 10 s with each failed probe. A failure is a call without any answer
    of the store (UNAVAILABLE, TIMEOUT) or a violation; MISS, REJECTED and CORRUPT are answers. Thread-safe.
    """

    def __init__(self, clock: Clock = monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0
        self._abandoned = 0
        self._open_until: float | None = None
        self._probing = False
        self._prober = 0
        self._pause = FIRST_PAUSE
        self._opened = 0
        self._reason = ""

    def admit(self) -> Admission:
        """Ask before each call."""
        if self._open_until is None:  # read without the lock: a call more or less at the edge does no harm
            return Admission.PASS
        with self._lock:
            if self._open_until is None:
                return Admission.PASS
            if self._probing or self._clock() < self._open_until:
                return Admission.BLOCKED
            self._probing, self._prober = True, threading.get_ident()
            return Admission.PROBE

    def end_probe(self) -> None:
        """This thread is done with the probe that it was given, if it was.

        Where nobody told how that ended (it was given up before it began, or something else was raised), it failed:
        a probe that never ends would keep the breaker open for ever.
        """
        if not self._probing:
            return
        with self._lock:
            if self._probing and self._prober == threading.get_ident():
                self._reopen("the probe was not made")

    @property
    def blocked(self) -> bool:
        """True where `admit` would answer BLOCKED; takes no probe."""
        if self._open_until is None:
            return False
        with self._lock:
            return self._open_until is not None and (self._probing or self._clock() < self._open_until)

    def success(self) -> None:
        """The store answered."""
        if not self._failures and self._open_until is None:
            return
        with self._lock:
            if self._open_until is not None and not self._probing:
                return  # a straggler that was admitted before the breaker opened proves nothing
            self._failures = 0
            self._open_until, self._probing, self._pause, self._reason = None, False, FIRST_PAUSE, ""

    def failure(self, reason: str) -> None:
        """The store did not answer, or not as the contract says."""
        with self._lock:
            self._failures += 1
            if self._probing:
                self._reopen(reason)
            elif self._open_until is None and self._failures >= FAILURES_TO_OPEN:
                self._open(FIRST_PAUSE, f"{self._failures} failures in a row, last: {reason}")

    def abandoned(self) -> None:
        """A caller stopped waiting for a call that is still in the store."""
        with self._lock:
            self._abandoned += 1
            self._failures += 1
            if self._probing:
                self._reopen("the probe passed its deadline")
            elif self._open_until is None and self._abandoned > ABANDONED_ALLOWED:
                self._open(FIRST_PAUSE, f"{self._abandoned} abandoned calls have not returned")
            elif self._open_until is None and self._failures >= FAILURES_TO_OPEN:
                self._open(FIRST_PAUSE, f"{self._failures} failures in a row, last: deadline passed")

    def returned_late(self) -> None:
        """An abandoned call came back."""
        with self._lock:
            self._abandoned -= 1

    def force_open(self, seconds: float, reason: str) -> None:
        """Open now and for so long, whatever the calls say."""
        with self._lock:
            self._probing = False
            self._open(seconds, reason)

    def status(self) -> BreakerStatus:
        """A snapshot."""
        with self._lock:
            if self._open_until is None:
                state, wait = "closed", 0.0
            else:
                wait = max(0.0, self._open_until - self._clock())
                state = "half_open" if self._probing or not wait else "open"
            return BreakerStatus(state, self._reason, self._failures, self._abandoned, self._opened, wait)

    def _open(self, seconds: float, reason: str) -> None:
        self._open_until = self._clock() + seconds
        self._pause = FIRST_PAUSE
        self._reason = reason
        self._opened += 1

    def _reopen(self, reason: str) -> None:
        self._probing = False
        self._pause = min(LONGEST_PAUSE, self._pause * 2)
        self._open_until = self._clock() + self._pause
        self._reason = f"probe failed: {reason}"
