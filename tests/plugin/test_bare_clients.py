"""Bare clients: what a plugin offers is found, and what is none is told."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from hicache_core.errors import DuplicateNameError, PluginError
from hicache_core.plugin import bare_clients
from hicache_core.plugin.bare_clients import backends_with_bare_clients, bare_cases

NO_CASES = 17


def offering(monkeypatch: pytest.MonkeyPatch, *values: str) -> None:
    entries = [EntryPoint("x", value, bare_clients.GROUP) for value in values]
    monkeypatch.setattr(bare_clients, "entry_points", lambda **_: entries)


@pytest.mark.parametrize("backend", ["memory", "file"])
def test_a_client_gives_back_what_it_took(backend: str, tmp_path: Path) -> None:
    if backend == "file":
        pytest.importorskip("hicache_file", reason="another distribution: pip install hicache-file")
    assert backend in backends_with_bare_clients()
    memory = np.arange(4 * 8192, dtype=np.uint32).view(np.uint8)[: 4 * 8192].reshape(4, 8192).copy()
    memory[2:] = 0
    (case,) = bare_cases(backend)
    with case.store(tmp_path, 1 << 20) as options:
        client = case.client(options, memory)
        client.put(["n/a", "n/b"], [0, 1])
        client.get(["n/b", "n/a"], [2, 3])
        assert np.array_equal(memory[2:], memory[1::-1])
        with pytest.raises((KeyError, OSError)):
            client.get(["n/c"], [0])
        client.close()


def test_a_backend_without_one_has_no_cases() -> None:
    assert list(bare_cases("no_such_backend")) == []


def test_two_offers_of_one_name_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    offering(monkeypatch, "a:cases", "b:cases")
    with pytest.raises(DuplicateNameError, match="a:cases"):
        bare_cases("x")


@pytest.mark.parametrize(("value", "said"), [("no_such_module:cases", "imported"), (f"{__name__}:NO_CASES", "17")])
def test_an_offer_that_is_none_is_told(value: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, __name__, SimpleNamespace(NO_CASES=NO_CASES))
    offering(monkeypatch, value)
    with pytest.raises(PluginError, match=said):
        bare_cases("x")
