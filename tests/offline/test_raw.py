"""The tools that look into a store from outside, on a store that fails and lies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from hicache_core.errors import StorageError
from hicache_core.offline.raw import RawStore, StoredObject
from hicache_core.offline.verify import Tally, verify
from hicache_core.plugin.select import BackendChoice
from hicache_core.plugin.spec import hookimpl
from hicache_core.types import BackendSpec, Outcome, Page


class Options(msgspec.Struct):
    """One secret."""

    password: str = "hunter2"


class Backend:
    """Answers what the test says."""

    def __init__(self, **answers: Callable[..., Any]) -> None:
        self.answers = answers

    @hookimpl
    def batch_exists(self, keys: Sequence[str]) -> int:
        return 0

    @hookimpl
    def batch_get(self, keys: Sequence[str], pages: Sequence[Page]) -> Any:
        return self.answers["get"](keys)

    @hookimpl
    def batch_set(self, keys: Sequence[str]) -> list[Outcome]:
        return [Outcome.REJECTED] * len(keys)

    @hookimpl
    def delete(self, keys: Sequence[str]) -> Any:
        return self.answers["delete"](keys)

    @hookimpl
    def scan(self, namespace: str | None, cursor: str | None) -> Any:
        return self.answers["scan"](cursor)

    @hookimpl
    def close(self) -> None:
        """Nothing to close."""


def fail(*_: object) -> Any:
    raise OSError("refused hunter2")


def raw(**answers: Callable[..., Any]) -> RawStore:
    return RawStore(BackendChoice(BackendSpec("x", "", Options, lambda *_: Backend(**answers)), Options(), "test"))


CIRCLES = {None: "a", "a": "b", "b": "a"}


@pytest.mark.parametrize(
    ("scan", "says"),
    [
        (fail, r"OSError: refused \*\*\*"),
        (lambda cursor: ([], "always"), "came back to cursor 'always'"),
        (lambda cursor: ([], CIRCLES[cursor]), "came back to cursor 'a'"),
        (lambda cursor: [("key", 1, 0.0)], "a list of 1"),
        (lambda cursor: ([("key", "1", 0.0)], None), "entry"),
        (lambda cursor: ([("key", -1, 0.0)], None), "entry"),
        (lambda cursor: ([("key", 1, None)], None), "entry"),
        (lambda cursor: ([], 5), "cursor 5"),
    ],
)
def test_a_listing_that_cannot_be_believed_is_an_error(scan: Callable[..., Any], says: str) -> None:
    with pytest.raises(StorageError, match=says), raw(scan=scan) as store:
        list(store.scan())


@pytest.mark.parametrize(
    "get", [fail, lambda keys: [], lambda keys: ["hit"], lambda keys: [Outcome.STORED], lambda keys: 5]
)
def test_a_page_that_cannot_be_read_does_not_end_the_verification(get: Callable[..., Any]) -> None:
    answers = iter([lambda keys: [Outcome.MISS], get, lambda keys: [Outcome.MISS]])
    tally = Tally()
    with raw(get=lambda keys: next(answers)(keys)) as store:
        for verdict in verify(store, [StoredObject(f"n/{number}", 10, 0.0) for number in range(3)]):
            tally.add(verdict)
    assert (tally.gone, tally.unreadable, tally.clean) == (2, 1, False)


@pytest.mark.parametrize("delete", [fail, lambda keys: [], lambda keys: [True] * len(keys)])
def test_a_deletion_that_cannot_be_believed_is_an_error(delete: Callable[..., Any]) -> None:
    with pytest.raises(StorageError, match="delete of backend 'x' failed"), raw(delete=delete) as store:
        store.delete(["n/1", "n/2"])
