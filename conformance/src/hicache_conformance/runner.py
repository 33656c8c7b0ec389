"""Runs cases without any test framework: the third door, and what the other two call."""

from __future__ import annotations

import contextlib
import random
import shutil
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

from hicache_conformance.backdoor import close_kits
from hicache_conformance.casebook import LEVELS, Case, catalogue, declared, find_case
from hicache_conformance.harness import Harness
from hicache_conformance.report import CaseResult, Report, command_line
from hicache_conformance.target import Resolved, Target
from hicache_conformance.verdict import CaseFailed, NotApplicable, Skipped
from hicache_conformance.versions import versions
from hicache_core.errors import HiCacheError
from hicache_core.plugin.redaction import HIDDEN, hider, redact, redact_url
from hicache_core.plugin.select import BackendChoice, open_backend
from hicache_core.storage.binding import HookBinding
from hicache_core.types import Capabilities

CASE_LIMIT = 20.0
"""A case that takes longer than this many times the target's patience is taken for hung."""


def run(
    target: Target,
    *,
    levels: Iterable[str] | None = None,
    cases: Iterable[str] | None = None,
    seed: int | None = None,
    on_start: Callable[[Case], object] | None = None,
    on_result: Callable[[CaseResult], object] | None = None,
) -> Report:
    """Prove a backend. Raises ConfigError or PluginError where it cannot be found or its options are wrong.

    levels: of `LEVELS`; None: all. cases: ids, None: all. seed: of every random choice; None: a new one, reported.
    on_start and on_result are called for each case, for progress.
    """
    seed = random.SystemRandom().randrange(2**32) if seed is None else seed
    chosen = catalogue(levels)
    if cases is not None:
        wanted = {find_case(name).id for name in cases}
        chosen = tuple(c for c in chosen if c.id in wanted)
    begun = time.monotonic()
    try:
        report = describe(target, seed=seed, levels=tuple(levels) if levels is not None else LEVELS)
        for case in chosen:
            if on_start is not None:
                on_start(case)
            result = run_case(case, target, seed=seed)
            report.results.append(result)
            if on_result is not None:
                on_result(result)
    finally:
        close_kits()
    report.seconds = time.monotonic() - begun
    return report


def describe(target: Target, *, seed: int, levels: tuple[str, ...]) -> Report:
    """A report without results yet: names, versions, levels that the backend does not declare."""
    directory = Path(tempfile.mkdtemp(prefix="hicache-conformance-"))
    try:
        resolved = target.resolve(directory)
        capabilities = _opened_capabilities(target, resolved, directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return Report(
        backend=target.name,
        versions=versions(target, resolved.spec),
        seed=seed,
        levels_run=levels,
        not_declared=tuple(level for level in levels if not declared(level, capabilities)),
        fake=resolved.spec.fake or bool(target.fake),
        fake_reason=target.fake,
        options=redact(resolved.options),
        expected=Counter(case.level for case in catalogue(levels)),
        command=_command(target, resolved),
        started=datetime.now(timezone.utc).isoformat(timespec="seconds"),
    )


def _command(target: Target, resolved: Resolved) -> str:
    """How a person runs the suite on this target; nothing for a spec that no entry point names."""
    if not isinstance(target.backend, str):
        return ""
    shown = redact(resolved.options)
    given = {name: HIDDEN if shown.get(name) == HIDDEN else value for name, value in redact(target.options).items()}
    backend = redact_url(target.backend) if "://" in target.backend else target.backend
    return command_line(backend, given)


def _opened_capabilities(target: Target, resolved: Resolved, directory: Path) -> Capabilities:
    """What the store declares once it is open; what its spec declares where it does not open (the cases tell why)."""
    found = [resolved.capabilities]

    def look() -> None:
        with contextlib.suppress(Exception):
            backend = _open(target, resolved, directory)
            narrowed = getattr(backend, "capabilities", None)
            if isinstance(narrowed, Capabilities):
                found.append(narrowed)
            HookBinding(backend).call("close")

    _within(target.patience, look)
    return found[-1]


def open_once(target: Target) -> None:
    """Open and close the backend as a session does, so that one that cannot be opened is told once, not by each case.

    Raises what `open_backend` raises. Of an opening that hangs the cases tell.
    """
    raised: list[HiCacheError] = []

    def try_it() -> None:
        directory = Path(tempfile.mkdtemp(prefix="hicache-conformance-"))
        try:
            HookBinding(_open(target, target.resolve(directory), directory)).call("close")
        except HiCacheError as error:
            raised.append(error)
        except Exception:  # noqa: BLE001 - what a close raises is for the cases to judge
            return
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    _within(target.patience, try_it)
    if raised:
        raise raised[0]


def _open(target: Target, resolved: Resolved, directory: Path) -> object:
    context = Harness(target, resolved, directory, case="first opening", seed=0, turn=0).context()
    return open_backend(BackendChoice(resolved.spec, resolved.options, "the suite's target"), context)


def _within(seconds: float, body: Callable[[], None]) -> None:
    """Run it in a thread, and wait no longer than that."""
    thread = threading.Thread(target=body, daemon=True, name="first opening")
    thread.start()
    thread.join(seconds)


def run_case(case: Case, target: Target, *, seed: int = 0, excuse: str | None = None) -> CaseResult:
    """Run one case, all its rounds, on a store of its own where the backend's kit can make one.

    Never raises for what the backend does; a body that hangs is left behind in its (daemon) thread and fails.
    excuse: the author's reason why it fails; by default that of `target.xfail`.
    """
    box: list[CaseResult] = []
    thread = threading.Thread(
        target=lambda: box.append(_judge(case, target, seed)), daemon=True, name=f"case {case.id}"
    )
    thread.start()
    limit = CASE_LIMIT * target.patience
    begun = time.monotonic()
    thread.join(limit)
    result = box[0] if box else CaseResult(case.id, case.level, "fail", f"hung: did not come back within {limit:g} s")
    result = replace(result, seconds=time.monotonic() - begun)
    return _excused(result, target.xfail.get(case.id) if excuse is None else excuse)


def _judge(case: Case, target: Target, seed: int) -> CaseResult:
    directory = Path(tempfile.mkdtemp(prefix="hicache-conformance-"))
    hide = hider(target.options)
    try:
        resolved = target.resolve(directory)
        hide = hider(resolved.options)
        if not declared(case.level, resolved.capabilities):
            return CaseResult(case.id, case.level, "skip", f"capability {case.level} is not declared")
        for turn in range(case.rounds):
            harness = Harness(target, resolved, directory, case=case.id, seed=seed, turn=turn, level=case.level)
            _round(case, harness, turn)
    except NotApplicable as reason:
        return CaseResult(case.id, case.level, "skip", str(reason), not_applicable=True)
    except Skipped as reason:
        return CaseResult(case.id, case.level, "skip", str(reason))
    except AssertionError as failure:
        return CaseResult(case.id, case.level, "fail", hide(str(failure)) or "assertion failed")
    except BaseException as error:  # noqa: BLE001 - any backend may raise anything; the report names it
        return CaseResult(case.id, case.level, "error", hide(_where(error)))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return CaseResult(case.id, case.level, "pass")


def _round(case: Case, harness: Harness, turn: int) -> None:
    try:
        case.body(harness)
    except AssertionError as failure:
        if turn:
            raise CaseFailed(f"in round {turn + 1} only: {failure}") from failure
        raise
    finally:
        harness.finish()


def _where(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}: {error}{place}"


def _excused(result: CaseResult, reason: str | None) -> CaseResult:
    """Apply the author's reason: an announced failure is xfail; a pass that was announced to fail is a fail."""
    if reason is None or result.outcome == "skip":
        return result
    if not reason.strip():
        return CaseResult(result.id, result.level, "error", "marked xfail without a reason")
    if result.outcome == "pass":
        return replace(result, outcome="fail", reason=f"passes, but is marked xfail: {reason}")
    return replace(result, outcome="xfail", reason=f"{reason} ({result.reason})")
