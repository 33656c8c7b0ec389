"""Transforms and observers by name: found, made with options, refused by name."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import Any, ClassVar

import pytest

from hicache_core.errors import ConfigError, DuplicateNameError, PluginError, UnknownNameError
from hicache_core.namespace import Identity, TransformIdentity
from hicache_core.plugin import extensions
from hicache_core.plugin.spec import OBSERVER_GROUP, TRANSFORM_GROUP, hookimpl
from hicache_core.storage import open_session

IDENTITY = Identity("m", "declared:w", "float16", 4, "mha", 1, 1, 8)


class Plain:
    """A transform that changes nothing but the namespace."""

    in_place_decode, changes_length = False, False

    def __init__(self, level: int = 1) -> None:
        self.identity = TransformIdentity("plain", "1", parameters=f"level={level}")

    def max_size(self, nbytes: int) -> int:
        return nbytes

    def encode(self, ctx: Any, keys: Any, pages: Any) -> Any:
        return [[memoryview(b"".join(page))] for page in pages]

    def decode(self, ctx: Any, keys: Any, src: Any, lengths: Any, dst: Any, outcomes: Any) -> Any:
        for source, target, outcome in zip(src, dst, outcomes, strict=True):
            if outcome:
                target[0][:] = source[0]
        return outcomes


class Counting:
    """An observer."""

    made: ClassVar[list[Counting]] = []

    def __init__(self) -> None:
        self.seen = 0
        Counting.made.append(self)

    @hookimpl(wrapper=True)
    def batch_set(self) -> Any:
        self.seen += 1
        return (yield)


def install(monkeypatch: pytest.MonkeyPatch, group: str, **values: list[str]) -> None:
    found = {name: [EntryPoint(name, v, group) for v in claims] for name, claims in values.items()}
    monkeypatch.setattr(extensions, "registered", lambda asked: found if asked == group else {})


def test_a_transform_by_name_is_part_of_the_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, TRANSFORM_GROUP, plain=[f"{__name__}:Plain"])
    monkeypatch.setitem(__import__("sys").modules, __name__, __import__("types").SimpleNamespace(Plain=Plain))
    spaces = []
    for transforms in ([], ["plain"], [{"name": "plain", "options": {"level": 9}}], [Plain(9)]):
        with open_session("memory", identity=IDENTITY, transforms=transforms) as session:
            page, room = [memoryview(bytes(range(64)))], [memoryview(bytearray(64))]
            assert session.set(["0" * 64], [page])[0]
            assert session.get(["0" * 64], [room])[0]
            assert room[0] == page[0]
            spaces.append(session.namespace)
    assert len(set(spaces)) == 3
    assert spaces[2] == spaces[3]


def test_an_observer_by_name_sees_the_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, OBSERVER_GROUP, counting=[f"{__name__}:Counting"])
    monkeypatch.setitem(__import__("sys").modules, __name__, __import__("types").SimpleNamespace(Counting=Counting))
    Counting.made.clear()
    with open_session("memory", identity=IDENTITY, observers=["counting"]) as session:
        session.set(["0" * 64], [[memoryview(bytes(64))]])
    assert [observer.seen for observer in Counting.made] == [1]


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ("plian", UnknownNameError, "did you mean 'plain'"),
        ("twice", DuplicateNameError, "a:A .* and b:B"),
        ("broken", PluginError, "nowhere"),
        ({"name": "plain", "option": {}}, ConfigError, "option"),
        ({"options": {}}, ConfigError, "no name"),
    ],
)
def test_a_bad_name_is_refused(
    monkeypatch: pytest.MonkeyPatch, given: Any, error: type[Exception], words: str
) -> None:
    install(monkeypatch, TRANSFORM_GROUP, plain=["x:Y"], twice=["a:A", "b:B"], broken=["nowhere:Z"])
    with pytest.raises(error, match=words):
        open_session("memory", identity=IDENTITY, transforms=[given])
