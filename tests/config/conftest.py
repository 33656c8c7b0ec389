"""Two backends that exist only here, in place of those that are installed."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import msgspec
import pytest

from hicache_core.config import corrections, merge
from hicache_core.errors import UnknownNameError
from hicache_core.plugin import select
from hicache_core.types import BackendSpec, Capabilities


class DiskOptions(msgspec.Struct, kw_only=True):
    root: Annotated[str, msgspec.Meta(description="directory")] = "/x"
    depth: int = 1
    secret_key: str = ""
    page_only: bool = False


class WrapOptions(msgspec.Struct, kw_only=True):
    PASSTHROUGH: ClassVar[str] = "rest"
    inner: str = "disk"
    rest: dict[str, Any] = {}


def layouts(options: DiskOptions) -> Capabilities:
    return Capabilities(layouts=("page_first", "page_first_direct") if options.page_only else None)


SPECS = {
    "disk": BackendSpec("disk", "a fake", DiskOptions, "nowhere:open", capabilities=layouts),
    "wrap": BackendSpec("wrap", "a fake", WrapOptions, "nowhere:open"),
}


def find_fake(name: str) -> BackendSpec:
    if name not in SPECS:
        raise UnknownNameError("backend", name, SPECS)
    return SPECS[name]


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge, "find_backend", find_fake)
    monkeypatch.setattr(select, "find_backend", find_fake)
    monkeypatch.setattr(corrections, "_reported", set())
