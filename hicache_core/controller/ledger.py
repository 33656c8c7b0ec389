"""The books: tokens found = tokens used + tokens lost by reason (+ tokens of requests still open), per tier.

Found is booked when a tier says that it has a token, used and lost when that is decided, each at its own place
in the code; `balanced` compares the totals with what the open requests still owe, so a path that forgets to
book one of the three shows up.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from hicache_core.controller.reasons import Reason, Tier


@dataclass(slots=True)
class TierBook:
    """Tokens of one tier."""

    found: int = 0
    used: int = 0
    lost: Counter[Reason] = field(default_factory=Counter)

    @property
    def open(self) -> int:
        """Found, and neither used nor lost yet."""
        return self.found - self.used - sum(self.lost.values())

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        lost = {reason.value: tokens for reason, tokens in sorted(self.lost.items()) if tokens}
        return {"found": self.found, "used": self.used, "lost": lost, "open": self.open}


Books = dict[Tier, TierBook]


def new_books() -> Books:
    """Empty books of the three tiers."""
    return {tier: TierBook() for tier in Tier}


class Account:
    """One request's part of the ledger. Every entry is booked here and in the totals.

    Opened by `TokenLedger.open`, closed once by `close`, which books what is still open as lost.
    """

    __slots__ = ("_ledger", "books", "closed")

    def __init__(self, ledger: TokenLedger) -> None:
        self._ledger = ledger
        self.books = new_books()
        self.closed = False

    def found(self, tier: Tier, tokens: int) -> None:
        """A tier has these tokens."""
        self.books[tier].found += tokens
        self._ledger.tiers[tier].found += tokens

    def used(self, tier: Tier, tokens: int) -> None:
        """Tokens that need not be computed."""
        self.books[tier].used += tokens
        self._ledger.tiers[tier].used += tokens

    def lost(self, tier: Tier, reason: Reason, tokens: int) -> None:
        """Tokens that were found and are computed again (or came from a nearer tier)."""
        if tokens:
            self.books[tier].lost[reason] += tokens
            self._ledger.tiers[tier].lost[reason] += tokens

    def retract(self, tier: Tier, reason: Reason, tokens: int) -> None:
        """Tokens booked as used that could not be used after all."""
        self.used(tier, -tokens)
        self.lost(tier, reason, tokens)

    def close(self, reason: Reason) -> None:
        """The request is over; what is still open is lost for `reason`."""
        if self.closed:
            return
        for tier, book in self.books.items():
            self.lost(tier, reason, book.open)
        self.closed = True
        self._ledger.live.discard(self)


class TokenLedger:
    """Totals of every request since start, by tier. Engine thread only."""

    def __init__(self) -> None:
        self.tiers = new_books()
        self.live: set[Account] = set()
        self.recomputed = 0
        """Prompt tokens that had to be computed."""
        self.asked = 0
        """Prompt tokens of all admitted requests."""

    def open(self) -> Account:
        """The books of a new request."""
        account = Account(self)
        self.live.add(account)
        return account

    def admitted(self, tokens: int, recomputed: int) -> None:
        """A request of so many prompt tokens was admitted; these must be computed."""
        self.asked += tokens
        self.recomputed += recomputed

    def problems(self) -> list[str]:
        """What does not add up, in words; empty where all is well."""
        problems = []
        for tier, book in self.tiers.items():
            owed = sum(account.books[tier].open for account in self.live)
            if book.open != owed:
                problems.append(f"{tier}: {book.as_dict()} leaves {book.open} open, requests owe {owed}")
            if min([book.used, book.open, *book.lost.values()]) < 0:
                problems.append(f"{tier}: a negative entry in {book.as_dict()}")
        used = sum(book.used for book in self.tiers.values())
        if used + self.recomputed != self.asked:
            problems.append(f"used {used} + recomputed {self.recomputed} != prompt tokens admitted {self.asked}")
        return problems

    def balanced(self) -> bool:
        """Whether found = used + lost + open in every tier, and used + recomputed = prompt tokens."""
        return not self.problems()

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        tiers = {tier.value: book.as_dict() for tier, book in self.tiers.items()}
        return {
            "balanced": self.balanced(),
            "prompt_tokens": self.asked,
            "recomputed": self.recomputed,
            "tiers": tiers,
        }
