"""What the tests of all doors share: a store that can be held, and modules that lie beside the tests."""

from __future__ import annotations

import importlib.util
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def load_module() -> Callable[[Path], ModuleType]:
    """Loads a file as a module, afresh, under a name that the backend `dynamic` can import.

    Warnings of what it imports are off: engines give many, when imported and later.
    """

    def load(path: Path) -> ModuleType:
        spec = importlib.util.spec_from_file_location(f"{path.parent.name}_tests_{path.stem}", path)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture
def held_stores(load_module: Callable[[Path], ModuleType]) -> Iterator[ModuleType]:
    """The module `held_store`, in which no store is open yet; at the end whoever waits in one is let go."""
    module = load_module(Path(__file__).with_name("held_store.py"))
    yield module
    for store in module.HeldStore.opened:
        store.release.set()
