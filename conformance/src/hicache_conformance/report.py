"""The result of a run: cases, levels earned, and the JSON form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hicache_conformance.casebook import LEVELS

OUTCOMES = ("pass", "fail", "skip", "xfail", "error")


@dataclass(frozen=True, slots=True)
class CaseResult:
    """What became of one case: pass, fail, skip, xfail or error, with the reason unless it is a pass.

    not_applicable: the rule does not concern this store, by its author's statement; listed apart, never counted.
    """

    id: str
    level: str
    outcome: str
    reason: str = ""
    not_applicable: bool = False

    def as_dict(self) -> dict[str, str]:
        """The JSON form."""
        return {"id": self.id, "level": self.level, "outcome": self.outcome, "reason": self.reason}


@dataclass
class Report:
    """A run of the suite on one backend."""

    backend: str
    versions: dict[str, str]
    seed: int
    levels_run: tuple[str, ...]
    not_declared: tuple[str, ...] = ()
    fake: bool = False
    fake_reason: str = ""
    """Why the store is not the real one, in the words of its kit; may be empty for a fake."""
    options: Mapping[str, Any] = field(default_factory=dict)
    results: list[CaseResult] = field(default_factory=list)
    expected: Mapping[str, int] = field(default_factory=dict)
    """Cases of each level in the catalogue: a level of which fewer were run is not earned."""

    @property
    def cases(self) -> list[CaseResult]:
        """The cases that concern this backend."""
        return [r for r in self.results if not r.not_applicable]

    @property
    def counts(self) -> dict[str, int]:
        """Cases by outcome; every outcome is named, also with 0."""
        found = Counter(r.outcome for r in self.cases)
        return {outcome: found[outcome] for outcome in OUTCOMES}

    @property
    def levels(self) -> dict[str, str]:
        """Each level that was run: pass, partial (something was skipped or excused), fail, not_declared."""
        return {level: self._mark(level) for level in LEVELS if level in self.levels_run}

    @property
    def failed(self) -> bool:
        """Whether any case failed or could not be judged."""
        return any(r.outcome in ("fail", "error") for r in self.cases)

    def _mark(self, level: str) -> str:
        if level in self.not_declared:
            return "not_declared"
        earned = mark(r.outcome for r in self.cases if r.level == level)
        complete = sum(r.level == level for r in self.results) >= self.expected.get(level, 1)
        return earned if complete or earned == "fail" else "partial"

    def as_dict(self) -> dict[str, Any]:
        """The JSON form: backend, versions, levels, cases, seed, counts of every outcome."""
        return {
            "backend": self.backend,
            "fake": self.fake,
            "fake_reason": self.fake_reason,
            "versions": self.versions,
            "options": dict(self.options),
            "seed": self.seed,
            "levels": self.levels,
            "counts": self.counts,
            "cases": [r.as_dict() for r in self.cases],
            "not_applicable": [
                {"id": r.id, "level": r.level, "reason": r.reason} for r in self.results if r.not_applicable
            ],
        }


def mark(outcomes: Iterable[str]) -> str:
    """The mark of a level from the outcomes of its cases: earned only without failures and without skips."""
    found = set(outcomes)
    if found & {"fail", "error"}:
        return "fail"
    return "pass" if found == {"pass"} else "partial"
