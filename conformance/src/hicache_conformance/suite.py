"""The first door: a pytest class with one method per case.

class TestMyStore(BackendSuite):
    @pytest.fixture
    def target(self, tmp_path):
        return Target("mystore", {"root": str(tmp_path)})
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

import pytest

from hicache_conformance.casebook import Case, catalogue
from hicache_conformance.runner import run_case
from hicache_conformance.target import Target

_REASON = "hicache_stated_reason"
F = TypeVar("F", bound=Callable[..., object])


def stated_reason(reason: str) -> Callable[[F], F]:
    """Mark a method that overrides a case on purpose. ValueError for an empty reason."""
    if not reason.strip():
        raise ValueError("overriding a conformance case needs a reason")

    def mark(method: F) -> F:
        setattr(method, _REASON, reason)
        return method

    return mark


class BackendSuite:
    """Subclass it, give the fixture `target`, and every case of the catalogue is a test of your class.

    xfail: case id -> why this backend fails it (strict: a case that passes all the same fails). Cases that need a
    capability or a back door that is not there are skipped, with what they need. `--conformance-seed N` replays.
    """

    xfail: ClassVar[Mapping[str, str]] = {}

    @pytest.fixture
    def target(self) -> Target:
        """The backend under test."""
        raise NotImplementedError(f"{type(self).__name__} must define the fixture `target`, which returns a Target")

    def test_no_case_is_overridden_or_removed(self) -> None:
        """Fails when the class deletes or overrides a case, or excuses one, without a stated reason."""
        found = tampering(type(self))
        if found:
            pytest.fail("\n".join(found), pytrace=False)


def tampering(suite: type[BackendSuite]) -> list[str]:
    """What a subclass did to the catalogue without saying why; empty: nothing."""
    found = []
    names = {f"test_{case.id}": case.id for case in catalogue()}
    for name in (*names, "test_no_case_is_overridden_or_removed"):
        original, current = BackendSuite.__dict__[name], getattr(suite, name, None)
        if current is None:
            found.append(f"{name} was removed: a case that cannot hold is named in `xfail`, with the reason")
        elif current is not original and not getattr(current, _REASON, ""):
            found.append(
                f"{name} is overridden without a reason: decorate it with @stated_reason('…'), or use `xfail`"
            )
    for case_id, reason in suite.xfail.items():
        if case_id not in names.values():
            found.append(f"xfail names {case_id!r}, which is no case")
        elif not str(reason).strip():
            found.append(f"xfail of {case_id!r} has no reason")
    return found


def _test_of(case: Case) -> Callable[..., None]:
    def test(self: BackendSuite, target: Target, request: pytest.FixtureRequest) -> None:
        excuse = self.xfail.get(case.id, target.xfail.get(case.id))
        result = run_case(case, target, seed=request.config.getoption("--conformance-seed"), excuse=excuse)
        if result.outcome == "skip":
            pytest.skip(f"not applicable: {result.reason}" if result.not_applicable else result.reason)
        if result.outcome == "xfail":
            pytest.xfail(result.reason)
        if result.outcome != "pass":
            pytest.fail(f"{case.rule}: {result.reason}", pytrace=False)

    test.__name__ = f"test_{case.id}"
    test.__qualname__ = f"BackendSuite.{test.__name__}"
    test.__doc__ = case.summary
    level: Any = getattr(pytest.mark, f"hicache_{case.level}")
    marked: Callable[..., None] = pytest.mark.hicache_conformance(case.level)(level(test))
    return marked


for _case in catalogue():
    setattr(BackendSuite, f"test_{_case.id}", _test_of(_case))
