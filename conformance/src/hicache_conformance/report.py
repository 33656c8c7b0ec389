"""The result of a run: cases, levels earned, how to run a case again, and the JSON form."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from hicache_conformance.casebook import LEVELS
from hicache_core.storage.measure import Speed

OUTCOMES = ("pass", "fail", "skip", "xfail", "error")
FAILURES = ("fail", "error")


def readable(text: str) -> str:
    """The text, with what cannot be written (half a surrogate pair, from a path or a store) escaped."""
    return text.encode("utf-8", "backslashreplace").decode()


@dataclass(frozen=True, slots=True)
class CaseResult:
    """What became of one case: pass, fail, skip, xfail or error, with the reason unless it is a pass.

    not_applicable: the rule does not concern this store, by its author's statement; listed apart, never counted.
    seconds: wall time of all its rounds.
    """

    id: str
    level: str
    outcome: str
    reason: str = ""
    not_applicable: bool = False
    seconds: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", readable(self.reason))

    def as_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "id": self.id,
            "level": self.level,
            "outcome": self.outcome,
            "reason": self.reason,
            "seconds": round(self.seconds, 3),
        }


@dataclass
class Appendix:
    """How fast the store was, through a session that seals and verifies. It decides nothing.

    skipped: why a page size, or all of them, could not be measured.
    """

    speeds: list[Speed] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


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
    command: str = ""
    """`hicache conformance NAME -o …` with secrets hidden; empty where the backend has no name to open it by."""
    started: str = ""
    """UTC, ISO 8601."""
    seconds: float = 0.0
    appendix: Appendix | None = None
    """None: it was not asked for."""

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
    def earned(self) -> list[str]:
        """The levels with the mark pass."""
        return [level for level, found in self.levels.items() if found == "pass"]

    @property
    def failed(self) -> bool:
        """Whether any case failed or could not be judged."""
        return any(r.outcome in FAILURES for r in self.cases)

    @property
    def fake_sentence(self) -> str:
        """What every form of the report says of a fake; empty for a real store."""
        if not self.fake:
            return ""
        return "This backend ran on a fake of its store" + (f": {self.fake_reason}" if self.fake_reason else ".")

    def reproduce(self, case_id: str = "") -> str:
        """How to run one case again with the same seed, or the whole run."""
        if not self.command:
            return f"run(target, {f'cases=[{case_id!r}], ' if case_id else ''}seed={self.seed})"
        return readable(f"{self.command}{f' --case {case_id}' if case_id else ''} --seed {self.seed}")

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
            "options": {name: readable(v) if isinstance(v, str) else v for name, v in self.options.items()},
            "seed": self.seed,
            "command": self.reproduce(),
            "started": self.started,
            "seconds": round(self.seconds, 3),
            "levels": self.levels,
            "counts": self.counts,
            "cases": [self._case(r) for r in self.cases],
            "not_applicable": [
                {"id": r.id, "level": r.level, "reason": r.reason} for r in self.results if r.not_applicable
            ],
            "throughput": None if self.appendix is None else self._throughput(self.appendix),
        }

    def _case(self, result: CaseResult) -> dict[str, Any]:
        again = {"reproduce": self.reproduce(result.id)} if result.outcome in FAILURES else {}
        return {**result.as_dict(), **again}

    def _throughput(self, appendix: Appendix) -> dict[str, Any]:
        return {"speeds": [msgspec.structs.asdict(s) for s in appendix.speeds], "skipped": appendix.skipped}


def mark(outcomes: Iterable[str]) -> str:
    """The mark of a level from the outcomes of its cases: earned only without failures and without skips."""
    found = set(outcomes)
    if found & set(FAILURES):
        return "fail"
    return "pass" if found == {"pass"} else "partial"


def command_line(backend: str, options: Mapping[str, Any]) -> str:
    """`hicache conformance …` for a shell; options: as they may be shown."""
    words = ["hicache", "conformance", backend]
    for name, value in options.items():
        words += ["-o", f"{name}={value}"]
    return shlex.join(words)
