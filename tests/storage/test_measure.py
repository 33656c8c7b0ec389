"""What `hicache bench` and the conformance appendix measure with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from hicache_core.plugin.select import BackendChoice
from hicache_core.plugin.spec import hookimpl
from hicache_core.storage.measure import bench_shape, measure_backend
from hicache_core.types import BackendSpec, IoContext, Outcome, Page

KEPT: list[Any] = []


class NoOptions(msgspec.Struct):
    """None."""


class Plain:
    """The required hooks alone, and a hand that keeps what it was lent."""

    def __init__(self, options: NoOptions, ctx: object) -> None:
        self.pages: dict[str, bytes] = {}

    @hookimpl
    def batch_exists(self, keys: Sequence[str]) -> int:
        return next((i for i, key in enumerate(keys) if key not in self.pages), len(keys))

    @hookimpl
    def batch_get(self, keys: Sequence[str], pages: Sequence[Page]) -> list[Outcome]:
        for key, page in zip(keys, pages, strict=True):
            data, at = self.pages[key], 0
            for buffer in page:
                buffer[:] = data[at : at + len(buffer)]
                at += len(buffer)
        return [Outcome.HIT] * len(keys)

    @hookimpl
    def batch_set(self, keys: Sequence[str], pages: Sequence[Page], ctx: IoContext) -> list[Outcome]:
        KEPT.append(pages)
        self.pages.update((key, b"".join(page)) for key, page in zip(keys, pages, strict=True))
        return [Outcome.STORED] * len(keys)

    @hookimpl
    def close(self) -> None:
        self.pages.clear()


@pytest.fixture(autouse=True)
def _let_go() -> Any:
    yield
    KEPT.clear()


def test_a_store_without_clear_that_keeps_a_view_is_measured_too() -> None:
    spec = BackendSpec(name="plain", description="plain", options=NoOptions, factory=Plain)
    rounds: list[int] = []
    speed = measure_backend(
        BackendChoice(spec, NoOptions(), "test"), 8192, pages=4, rounds=2, on_round=lambda: rounds.append(1)
    )
    assert (speed.page_bytes, speed.pages, speed.failed, len(rounds)) == (8192, 4, 0, 3)
    assert KEPT


def test_pages_have_the_size_asked_for_and_a_namespace_of_their_own() -> None:
    (geometry, one), (_, other) = bench_shape(8192), bench_shape(8192)
    assert geometry.page_size * sum(geometry.row_bytes) == 8192
    assert one.namespace() != other.namespace()
