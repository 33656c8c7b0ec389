"""The conformance suite for hicache storage backends: one catalogue of cases, three doors.

* pytest: subclass `BackendSuite`, give one fixture `target`.
* command: `hicache conformance NAME -o option=value --json report.json`.
* functions: `run(Target("name", {...}))` returns a `Report`; `run_case(case, target)` runs one.

The names are imported when they are first asked for, because pytest imports this package at every start.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hicache_conformance.backdoor import BackDoor, StoreKit
    from hicache_conformance.casebook import LEVELS, Case, catalogue
    from hicache_conformance.report import CaseResult, Report
    from hicache_conformance.runner import run, run_case
    from hicache_conformance.suite import BackendSuite, stated_reason
    from hicache_conformance.target import Target

_HOMES = {
    "BackDoor": "backdoor",
    "StoreKit": "backdoor",
    "LEVELS": "casebook",
    "Case": "casebook",
    "catalogue": "casebook",
    "CaseResult": "report",
    "Report": "report",
    "run": "runner",
    "run_case": "runner",
    "BackendSuite": "suite",
    "stated_reason": "suite",
    "Target": "target",
}

__all__ = [
    "LEVELS",
    "BackDoor",
    "BackendSuite",
    "Case",
    "CaseResult",
    "Report",
    "StoreKit",
    "Target",
    "catalogue",
    "run",
    "run_case",
    "stated_reason",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{home}")
    value = getattr(module, name)
    globals()[name] = value
    return value
