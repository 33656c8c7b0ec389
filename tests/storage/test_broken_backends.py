"""Backends that answer nonsense or blow up: an outcome, a named violation, never an exception or a wrong page."""

from __future__ import annotations

from typing import Any

import pytest

from hicache_core.plugin.spec import hookimpl
from hicache_core.storage.calls import ExistsAnswer
from hicache_core.types import Capabilities, Outcome, PoolName, PoolTransfer, PoolTransferResult


def answering(kit: Any, hook: str, answer: Any) -> Any:
    """A backend whose `hook` answers `answer`, or calls it where it is callable."""

    def say(self: Any) -> Any:
        return answer() if callable(answer) else answer

    say.__name__ = hook
    return type("Broken", (kit.Plain,), {hook: hookimpl(say)})()


@pytest.mark.parametrize(
    "answer",
    [
        None,
        True,
        [],
        [Outcome.HIT],
        [Outcome.HIT] * 3,
        (Outcome.HIT, Outcome.HIT),
        [True, True],
        ["hit", "hit"],
        [Outcome.STORED, Outcome.HIT],
        [Outcome.FOREIGN, Outcome.HIT],
        [Outcome.EXISTS, Outcome.EXISTS],
        [None, Outcome.HIT],
        {"a": Outcome.HIT, "b": Outcome.HIT},
    ],
)
def test_a_wrong_answer_to_get_is_a_violation(kit: Any, answer: Any) -> None:
    session = kit.open(answering(kit, "batch_get", answer))
    assert session.get(kit.hashes(2), kit.rooms(2)) == [Outcome.UNAVAILABLE] * 2
    assert session.ledger.as_dict()["violations"] == {"batch_get": 1}
    assert session.status().breakers["read"].failures_in_row == 1


@pytest.mark.parametrize("answer", [None, [Outcome.HIT, Outcome.STORED], [Outcome.MISS] * 2, [Outcome.STORED], "ok"])
def test_a_wrong_answer_to_set_is_a_violation(kit: Any, answer: Any) -> None:
    session = kit.open(answering(kit, "batch_set", answer))
    assert session.set(kit.hashes(2), kit.sources(2)) == [Outcome.UNAVAILABLE] * 2
    assert session.ledger.as_dict()["violations"] == {"batch_set": 1}


@pytest.mark.parametrize("answer", [None, -1, 3, True, 1.0, "2", [1]])
def test_a_wrong_answer_to_exists_is_a_violation(kit: Any, answer: Any) -> None:
    session = kit.open(answering(kit, "batch_exists", answer))
    assert session.query(kit.hashes(2)) == ExistsAnswer(0, "unavailable")
    assert session.ledger.as_dict()["violations"] == {"batch_exists": 1}


@pytest.mark.parametrize("answer", [[True], [True, 1], "tt", (True, True)])
def test_a_wrong_answer_to_contains_is_a_violation(kit: Any, answer: Any) -> None:
    session = kit.open(answering(kit, "batch_contains", answer))
    assert session.contains(kit.hashes(2)) == [False, False]
    assert session.ledger.as_dict()["violations"] == {"batch_contains": 1}


@pytest.mark.parametrize(
    "answer",
    [
        2,
        PoolTransferResult(3),
        PoolTransferResult(-1),
        PoolTransferResult(2, [1]),
        PoolTransferResult(2, [2, 1]),
        PoolTransferResult(2, [0, 2]),
        PoolTransferResult(0, [1]),
    ],
)
def test_a_wrong_answer_to_exists_v2_is_a_violation(kit: Any, answer: Any) -> None:
    session = kit.open(answering(kit, "batch_exists_v2", answer))
    assert session.exists_v2(kit.hashes(2), []).kv_hit_pages == 0
    assert session.ledger.as_dict()["violations"] == {"batch_exists_v2": 1}


@pytest.mark.parametrize("answer", [[], {}, {PoolName.KV: [Outcome.HIT]}, {PoolName.MAMBA: [Outcome.HIT] * 2}])
def test_a_wrong_answer_to_get_v2_is_a_violation(kit: Any, answer: Any) -> None:
    import numpy as np

    session = kit.open(answering(kit, "batch_get_v2", answer))
    session.register_host_pool(kit.HostPool(PoolName.KV, 2))
    transfer = PoolTransfer(PoolName.KV, kit.hashes(2), np.arange(2))
    assert session.get_v2([transfer]) == {PoolName.KV: [Outcome.UNAVAILABLE] * 2}
    assert session.ledger.as_dict()["violations"] == {"batch_get_v2": 1}


def raiser(error: type[BaseException]) -> Any:
    def fail() -> None:
        raise error("of the store")

    return fail


@pytest.mark.parametrize("error", [ValueError, OSError, MemoryError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_whatever_is_raised_is_an_outcome_with_its_cause_kept(kit: Any, error: type[BaseException]) -> None:
    session = kit.open(answering(kit, "batch_get", raiser(error)))
    assert session.get(kit.hashes(2), kit.rooms(2)) == [Outcome.UNAVAILABLE] * 2
    assert session.ledger.as_dict()["exceptions"] == {"batch_get": 1}
    assert session.ledger.recent_errors == [f"batch_get: {error.__name__}: of the store"]
    session = kit.open(answering(kit, "batch_set", raiser(error)))
    assert session.set(kit.hashes(2), kit.sources(2)) == [Outcome.UNAVAILABLE] * 2
    session = kit.open(answering(kit, "batch_exists", raiser(error)))
    assert session.query(kit.hashes(2)) == ExistsAnswer(0, "unavailable")


def test_a_liar_that_says_hit_and_writes_nothing_is_caught(kit: Any) -> None:
    session = kit.open(answering(kit, "batch_get", lambda: [Outcome.HIT] * 2))
    assert session.get(kit.hashes(2), kit.rooms(2)) == [Outcome.CORRUPT] * 2


def test_a_backend_that_leaves_the_wrong_number_of_lengths_is_a_violation(kit: Any) -> None:
    from hicache_core.namespace import TransformIdentity

    class Longer:
        identity = TransformIdentity("longer", "1")
        in_place_decode, changes_length = False, True

        def max_size(self, nbytes: int) -> int:
            return nbytes + 1

        def encode(self, ctx: Any, keys: Any, pages: Any) -> Any:
            return [[memoryview(b"".join(page) + b"!")] for page in pages]

        def decode(self, ctx: Any, keys: Any, src: Any, lengths: Any, dst: Any, outcomes: Any) -> Any:
            return outcomes

    class Lengths(kit.Plain):  # type: ignore[name-defined, misc]
        @hookimpl
        def batch_get(self, keys: Any, ctx: Any) -> list[Outcome]:
            ctx.lengths.pop()
            return [Outcome.HIT] * len(keys)

    session = kit.open(Lengths(), Capabilities(variable_length=True), transforms=[Longer()])
    assert session.get(kit.hashes(2), kit.rooms(2)) == [Outcome.UNAVAILABLE] * 2
    assert session.ledger.as_dict()["violations"] == {"batch_get": 1}


def test_admin_failures_are_storage_errors_with_their_cause(kit: Any) -> None:
    from hicache_core.errors import NotSupportedError, StorageError

    session = kit.open(answering(kit, "clear", raiser(OSError)))
    with pytest.raises(StorageError, match="OSError: of the store") as caught:
        session.clear()
    assert isinstance(caught.value.__cause__, OSError)
    session = kit.open(answering(kit, "scan", ("not", "it")))
    with pytest.raises(StorageError, match="scan"):
        session.scan()
    session = kit.open(answering(kit, "clear", "many"))
    with pytest.raises(StorageError, match="a count was due"):
        session.clear()
    session = kit.open(answering(kit, "close", raiser(RuntimeError)))
    report = session.close()
    kit.opened.remove(session)
    assert report.errors == ["close: RuntimeError: of the store"]
    plain = kit.open(kit.Plain())
    for operation in (plain.clear, plain.scan, lambda: plain.delete(kit.hashes(1))):
        with pytest.raises(NotSupportedError, match="test"):
            operation()
    assert plain.stats() is None
    session = kit.open(answering(kit, "delete", [Outcome.STORED]), Capabilities(delete="immediate"))
    assert session.delete(kit.hashes(1)) == [Outcome.UNAVAILABLE]
    assert session.ledger.as_dict()["violations"] == {"delete": 1}
