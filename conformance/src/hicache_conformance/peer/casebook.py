"""The cases that ask a storage class by itself. Each names the defect that it finds where it does not hold."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from hicache_conformance.peer.harness import PeerHarness

PeerBody: TypeAlias = "Callable[[PeerHarness], None]"
_MODULES = ("integrity", "naming", "pools", "behaviour")
_CASES: dict[str, PeerCase] = {}


@dataclass(frozen=True, slots=True)
class PeerCase:
    """id: what should hold. defect: what is the matter where it does not. summary: what is done."""

    id: str
    group: str
    defect: str
    summary: str
    body: PeerBody


def peer_case(group: str, defect: str) -> Callable[[PeerBody], PeerBody]:
    """Register a case under the name of the function."""

    def register(body: PeerBody) -> PeerBody:
        if body.__name__ in _CASES:
            raise ValueError(f"two cases are called {body.__name__!r}")
        summary = " ".join((body.__doc__ or "").split())
        _CASES[body.__name__] = PeerCase(body.__name__, group, defect, summary, body)
        return body

    return register


def peer_cases() -> tuple[PeerCase, ...]:
    """All of them, in the order of the report."""
    for module in _MODULES:
        importlib.import_module(f"hicache_conformance.peer.{module}")
    return tuple(_CASES.values())
