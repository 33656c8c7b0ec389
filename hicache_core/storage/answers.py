"""Whether what a backend answered is an answer in the sense of the contract."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

from hicache_core.types import (
    DELETE_OUTCOMES,
    GET_OUTCOMES,
    SET_OUTCOMES,
    Outcome,
    PoolTransfer,
    PoolTransferResult,
)

_word = attrgetter("_value_")
_LEGAL = {
    what: frozenset(outcome.value for outcome in outcomes)
    for what, outcomes in (("get", GET_OUTCOMES), ("set", SET_OUTCOMES), ("delete", DELETE_OUTCOMES))
}
_OUTCOME_ONLY = frozenset({Outcome})
_USUAL = {"get": Outcome.HIT, "set": Outcome.STORED, "delete": Outcome.HIT}


class ContractViolation(Exception):
    """A result that the contract does not allow, from `hook`; the guard makes its keys UNAVAILABLE."""

    def __init__(self, hook: str, text: str) -> None:
        super().__init__(text)
        self.hook, self.text = hook, text


def checked_outcomes(answer: Any, asked: int, hook: str, operation: str) -> list[Outcome]:
    """A list of one legal outcome per key, or ContractViolation. operation: get, set or delete."""
    if type(answer) is not list or len(answer) != asked:
        raise ContractViolation(hook, f"answered {describe(answer)} for {asked} keys; one outcome for each was due")
    outcomes: list[Outcome] = list(answer)  # our own: a store may keep its list and use it for the next answer
    if set(map(type, outcomes)) - _OUTCOME_ONLY:  # by type: `==` of an object that is none may say anything
        wrong = next(outcome for outcome in outcomes if type(outcome) is not Outcome)
        raise ContractViolation(hook, f"answered {describe(wrong)} for a key; an Outcome was due")
    if outcomes.count(_USUAL[operation]) == asked:
        return outcomes
    illegal = set(map(_word, outcomes)) - _LEGAL[operation]
    if illegal:
        raise ContractViolation(hook, f"answered {', '.join(sorted(illegal))}, which {operation} may not")
    return outcomes


def checked_by_pool(answer: Any, transfers: Sequence[PoolTransfer], hook: str, operation: str) -> list[Outcome]:
    """The outcomes of a v2 call, pool after pool in the order of the transfers, or ContractViolation."""
    if not isinstance(answer, Mapping):
        raise ContractViolation(hook, f"answered {describe(answer)}; a dict of lists by pool was due")
    if set(answer) != {transfer.name for transfer in transfers}:
        raise ContractViolation(
            hook,
            f"answered for pools {sorted(map(str, answer))}; {sorted(str(t.name) for t in transfers)} were asked for",
        )
    flat: list[Outcome] = []
    for transfer in transfers:
        flat += checked_outcomes(answer[transfer.name], len(transfer.keys), hook, operation)
    return flat


def checked_prefixes(answer: Any, asked: int, hook: str = "batch_exists_v2") -> PoolTransferResult:
    """A result whose lengths ascend within 1 … kv_hit_pages and end there, or ContractViolation."""
    if not isinstance(answer, PoolTransferResult):
        raise ContractViolation(hook, f"answered {describe(answer)}; a PoolTransferResult was due")
    hit = checked_run(answer.kv_hit_pages, asked, hook)
    if answer.restorable is None:
        return PoolTransferResult(hit, range(1, hit + 1))
    lengths = list(answer.restorable)
    if any(type(length) is not int for length in lengths) or lengths != sorted(set(lengths)):
        raise ContractViolation(hook, f"restorable {describe(lengths)} does not ascend")
    if (lengths[-1] if lengths else 0) != hit or (lengths and lengths[0] < 1):
        raise ContractViolation(hook, f"restorable {describe(lengths)} does not end at kv_hit_pages {hit}, from 1 on")
    return PoolTransferResult(hit, lengths)


def checked_run(answer: Any, asked: int, hook: str = "batch_exists") -> int:
    """The answer of batch_exists, if it is one; else ContractViolation."""
    if type(answer) is not int or not 0 <= answer <= asked:
        raise ContractViolation(hook, f"answered {answer!r} for {asked} keys; a count from 0 to {asked} was due")
    return answer


def checked_flags(answer: Any, asked: int, hook: str = "batch_contains") -> list[bool]:
    """The answer of batch_contains, if it is one; else ContractViolation."""
    if not isinstance(answer, list) or len(answer) != asked or any(type(flag) is not bool for flag in answer):
        raise ContractViolation(hook, f"answered {describe(answer)} for {asked} keys; one bool for each was due")
    return list(answer)


def checked_scan(answer: Any) -> tuple[list[tuple[str, int, float]], str | None] | None:
    """The answer of scan, if it is one (None: not supported); else ContractViolation."""
    if answer is None:
        return None
    if not isinstance(answer, tuple) or len(answer) != 2 or not isinstance(answer[0], list):
        raise ContractViolation("scan", f"answered {describe(answer)}; (list of entries, cursor) was due")
    entries, cursor = answer
    if cursor is not None and not isinstance(cursor, str):
        raise ContractViolation("scan", f"cursor {describe(cursor)}; text or None was due")
    for entry in entries:
        if not isinstance(entry, tuple) or len(entry) != 3 or not _types_of_entry(entry):
            raise ContractViolation("scan", f"entry {describe(entry)}; (key, bytes, mtime) was due")
    return entries, cursor


def _types_of_entry(entry: tuple[Any, Any, Any]) -> bool:
    return type(entry[0]) is str and type(entry[1]) is int and entry[1] >= 0 and isinstance(entry[2], int | float)


def describe(answer: Any) -> str:
    """A wrong answer in few words."""
    if isinstance(answer, list | tuple | dict):
        return f"a {type(answer).__name__} of {len(answer)}"
    text = repr(answer)
    return text if len(text) <= 60 else f"{text[:57]}..."
