"""The catalogue: every case, by level. A case is a function of a `Harness`; its docstring says what it proves."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from hicache_core.errors import UnknownNameError

if TYPE_CHECKING:
    from hicache_conformance.harness import Harness
    from hicache_core.types import Capabilities

LEVELS = ("core", "zero_copy", "hybrid", "durable", "shared", "hostile")
"""Independent marks, in the order of the report."""

CaseBody: TypeAlias = "Callable[[Harness], None]"

_MODULES = (
    "exists",
    "pages",
    "pagewise",
    "writes",
    "batches",
    "keys",
    "namespaces",
    "admin",
    "closing",
    "memory",
    "identity",
    "threads",
    "sizes",
    "history",
    "sessions",
    "transforms",
    "zero_copy",
    "registration",
    "hybrid",
    "pool_history",
    "crash",
    "outage",
    "shared",
    "damage",
    "pool_damage",
    "intruders",
    "stalls",
)
_CASES: dict[str, Case] = {}


@dataclass(frozen=True, slots=True)
class Case:
    """One rule of the contract, provable on any backend.

    id: unique over all levels; also the name of the pytest method (`test_<id>`). rule: the part of the contract.
    rounds: how often the body runs, each time on fresh keys of the same store: what ran once must run again.
    """

    id: str
    level: str
    rule: str
    summary: str
    body: CaseBody
    rounds: int


def case(level: str, rule: str, *, rounds: int = 2) -> Callable[[CaseBody], CaseBody]:
    """Register a case under the name of the function."""

    def register(body: CaseBody) -> CaseBody:
        name = body.__name__
        if name in _CASES:
            raise ValueError(f"two cases are called {name!r}")
        if level not in LEVELS:
            raise UnknownNameError("level", level, LEVELS)
        summary = " ".join((body.__doc__ or "").split())
        if not summary:
            raise ValueError(f"case {name!r} does not say what it proves")
        _CASES[name] = Case(name, level, rule, summary, body, rounds)
        return body

    return register


def declared(level: str, capabilities: Capabilities) -> bool:
    """Whether a store declares what a level is about. core, hybrid (the core lifts it) and hostile concern all."""
    if level == "zero_copy":
        return capabilities.zero_copy_v1 or capabilities.registration == "region"
    if level == "durable":
        return capabilities.durable
    return level != "shared" or capabilities.shared


def catalogue(levels: Iterable[str] | None = None) -> tuple[Case, ...]:
    """All cases, or those of some levels, in the order of `LEVELS`. UnknownNameError for an unknown level."""
    for module in _MODULES:
        importlib.import_module(f"hicache_conformance.cases.{module}")
    wanted = tuple(levels) if levels is not None else LEVELS
    for level in wanted:
        if level not in LEVELS:
            raise UnknownNameError("level", level, LEVELS)
    return tuple(c for level in LEVELS if level in wanted for c in _CASES.values() if c.level == level)


def find_case(name: str) -> Case:
    """The case of this id; UnknownNameError with the nearest one."""
    known = {c.id: c for c in catalogue()}
    if name not in known:
        raise UnknownNameError("case", name, known)
    return known[name]
