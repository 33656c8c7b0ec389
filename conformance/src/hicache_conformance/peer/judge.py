"""Judge a class: the cases that ask it by itself, then the levels of the suite through the adapter."""

from __future__ import annotations

import platform
import random
import shutil
import signal
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import FrameType
from typing import Any

from hicache_conformance.backdoor import BackDoor
from hicache_conformance.casebook import Case
from hicache_conformance.peer.casebook import PeerCase, peer_cases
from hicache_conformance.peer.harness import PeerHarness
from hicache_conformance.peer.kit import PeerKit
from hicache_conformance.peer.reproduction import reproduction_of
from hicache_conformance.peer.signals import handlers_left_out_in_threads, handlers_restored
from hicache_conformance.report import OUTCOMES, CaseResult, Report
from hicache_conformance.runner import run
from hicache_conformance.target import Resolved, Target
from hicache_conformance.verdict import CaseFailed, NotApplicable, Skipped
from hicache_core.adapters.sglang_backend.plugin import SPEC
from hicache_core.plugin.options import parse_options

CASE_SECONDS = 120.0
"""A case that takes longer is taken for hung (where it can be interrupted: on the main thread)."""


@dataclass(frozen=True)
class PeerTarget(Target):
    """The class under the suite's levels, a fresh store for each case."""

    peer: PeerKit | None = None

    def resolve(self, directory: Path) -> Resolved:
        """Its options in this directory."""
        assert self.peer is not None
        self.peer.empty()
        place = directory / "store"
        place.mkdir(exist_ok=True)
        options = {**self.peer.options_in(place), **self.options}
        return Resolved(SPEC, parse_options(SPEC.options, options, where="options of the judged class"), options)


@dataclass
class PeerReport:
    """What was found. contract is None where the levels were not run; contract_note: why, or how they were."""

    kit: PeerKit
    seed: int
    results: list[tuple[PeerCase, CaseResult]] = field(default_factory=list)
    contract: Report | None = None
    contract_note: str = ""

    @property
    def findings(self) -> list[dict[str, str]]:
        """One for each case that does not hold, with a program that shows it without hicache where there is one."""
        return [
            {
                "case": case.id,
                "group": case.group,
                "defect": case.defect if result.outcome == "fail" else f"raised where it was asked: {case.id}",
                "reason": result.reason,
                "reproduction": reproduction_of(self.kit.name, case.id) or "",
            }
            for case, result in self.results
            if result.outcome in ("fail", "error")
        ]

    @property
    def failed(self) -> bool:
        """Whether there is any finding."""
        return bool(self.findings) or (self.contract is not None and self.contract.failed)

    def as_dict(self) -> dict[str, Any]:
        """The JSON form."""
        applicable = [result for _, result in self.results if not result.not_applicable]
        counts = Counter(result.outcome for result in applicable)
        return {
            "sglang_class": self.kit.sglang_class,
            "note": self.kit.note,
            "versions": peer_versions(),
            "seed": self.seed,
            "counts": {outcome: counts[outcome] for outcome in OUTCOMES},
            "findings": self.findings,
            "cases": [{**result.as_dict(), "summary": case.summary} for case, result in self.results],
            "contract": None if self.contract is None else self.contract.as_dict(),
            "contract_note": self.contract_note,
        }


def judge(
    kit: PeerKit,
    *,
    levels: Iterable[str] | None = None,
    seed: int | None = None,
    contract: bool = True,
    on_peer_result: Callable[[PeerCase, CaseResult], object] | None = None,
    on_start: Callable[[Case], object] | None = None,
    on_result: Callable[[CaseResult], object] | None = None,
) -> PeerReport:
    """Judge a class. Raises what `open_once` does where it cannot be opened at all.

    levels: of the suite; contract: whether they are run. Call it on the main thread: some classes replace signal
    handlers when they are constructed, which Python allows nowhere else.
    """
    seed = random.SystemRandom().randrange(2**32) if seed is None else seed
    report = PeerReport(kit, seed)
    kit.start()
    try:
        _open_once(kit)
        for case in peer_cases():
            result = run_peer_case(case, kit, seed=seed)
            report.results.append((case, result))
            if on_peer_result is not None:
                on_peer_result(case, result)
        if contract:
            report.contract_note = kit.levels_note
            report.contract = _levels_of(kit, levels, seed, on_start, on_result)
        else:
            report.contract_note = "the levels were not run: only the class by itself was asked for"
    finally:
        kit.stop()
    return report


def _levels_of(
    kit: PeerKit,
    levels: Iterable[str] | None,
    seed: int,
    on_start: Callable[[Case], object] | None,
    on_result: Callable[[CaseResult], object] | None,
) -> Report:
    spec_ref = "hicache_conformance.peer.preload:SPEC"
    target = PeerTarget(SPEC, spec_ref=spec_ref, back_door=_back_door(kit), peer=kit)
    with handlers_left_out_in_threads() if kit.main_thread else nullcontext():
        return run(target, levels=levels, seed=seed, on_start=on_start, on_result=on_result)


def _open_once(kit: PeerKit) -> None:
    """So that a class that cannot be constructed is told once, not by each case. Raises OpenError."""
    directory = Path(tempfile.mkdtemp(prefix="hicache-peer-"))
    harness = PeerHarness(kit, directory, seed=0, case="first opening")
    try:
        with handlers_restored():
            harness.open()
    finally:
        harness.finish()
        shutil.rmtree(directory, ignore_errors=True)


def _back_door(kit: PeerKit) -> Callable[[object, Any], BackDoor]:
    def opened(backend: object, options: Any) -> BackDoor:
        door = kit.back_door(backend, options)
        if door is None:
            raise Skipped("needs a way past the class into its store, and none is known for it")
        return door

    return opened


def run_peer_case(case: PeerCase, kit: PeerKit, *, seed: int = 0) -> CaseResult:
    """One case in a directory of its own. Never raises for what the class does."""
    directory = Path(tempfile.mkdtemp(prefix="hicache-peer-"))
    harness = PeerHarness(kit, directory, seed=seed, case=case.id)
    try:
        with _limited(CASE_SECONDS), handlers_restored():
            case.body(harness)
    except NotApplicable as reason:
        return CaseResult(case.id, "peer", "skip", str(reason), not_applicable=True)
    except Skipped as reason:
        return CaseResult(case.id, "peer", "skip", str(reason))
    except AssertionError as failure:
        return CaseResult(case.id, "peer", "fail", str(failure) or "assertion failed")
    except Exception as error:  # noqa: BLE001 - a class may raise anything; the report names it
        return CaseResult(case.id, "peer", "error", f"{type(error).__name__}: {error}")
    finally:
        harness.finish()
        shutil.rmtree(directory, ignore_errors=True)
    return CaseResult(case.id, "peer", "pass")


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def over(number: int, frame: FrameType | None) -> None:
        raise CaseFailed(f"hung: did not come back within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def peer_versions() -> dict[str, str]:
    """Versions of what took part."""
    found = {"python": platform.python_version()}
    for name in ("sglang", "torch", "hicache-core", "hicache-conformance"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found
