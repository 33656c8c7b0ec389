"""How a case says what it found. Plain exceptions, so that cases run under any runner and under `python -O`."""

from __future__ import annotations

from collections.abc import Sequence


class CaseFailed(AssertionError):
    """The backend broke the rule that the case is about."""


class Skipped(Exception):
    """The case could not be run; the level is then not earned. The message says what is needed."""


class NotApplicable(Exception):
    """The rule does not concern this store (it keeps no files, say). The message says why."""


def check(condition: object, message: str) -> None:
    """Fail the case with `message` unless `condition` is true."""
    if not condition:
        raise CaseFailed(message)


def check_equal(found: object, expected: object, what: str) -> None:
    """Fail unless `found == expected`; both are shown, shortened."""
    if found != expected:
        raise CaseFailed(f"{what}: expected {short(expected)}, found {short(found)}")


def check_bytes(found: bytes, expected: bytes, what: str) -> None:
    """Fail unless both are the same bytes; the first difference is named."""
    if found == expected:
        return
    if len(found) != len(expected):
        raise CaseFailed(f"{what}: {len(found)} bytes instead of {len(expected)}")
    at = next(i for i, (a, b) in enumerate(zip(found, expected, strict=True)) if a != b)
    raise CaseFailed(
        f"{what}: byte {at} of {len(expected)} is 0x{found[at]:02x} instead of 0x{expected[at]:02x}"
        f" ({sum(a != b for a, b in zip(found, expected, strict=True))} bytes differ)"
    )


def short(value: object, limit: int = 240) -> str:
    """repr() of a value, cut in the middle of what is too long to read."""
    text = repr(value)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes) and len(value) > 12:
        text = f"{value[:6]!r} … ({len(value)} entries)"
    return text if len(text) <= limit else f"{text[: limit // 2]} … {text[-limit // 2 :]}"
