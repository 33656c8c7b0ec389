"""A backend without any packaging: a class by module and name."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from hicache_core.errors import ConfigError, HookError, OpenError, OptionError, PluginError
from hicache_core.plugin.dynamic import DYNAMIC, DynamicOptions, dynamic_spec, load_class
from hicache_core.plugin.options import parse_options
from hicache_core.plugin.select import choose_backend
from hicache_core.types import Capabilities, OpenContext

CTX = OpenContext(namespace="0" * 32)

STORES = dedent('''
    import msgspec
    from hicache_core.types import Capabilities, Outcome

    class Store:
        """Undecorated, constructed with (options, ctx)."""
        capabilities = Capabilities(durable=True)

        def __init__(self, options, ctx):
            self.given, self.ctx, self.pages = options, ctx, {}

        def batch_exists(self, keys):
            return next((i for i, k in enumerate(keys) if k not in self.pages), len(keys))

        def batch_get(self, keys, pages, ctx):
            return [Outcome.MISS for _ in keys]

        def batch_set(self, keys, pages):
            self.pages.update((k, b"".join(p)) for k, p in zip(keys, pages))
            return [Outcome.STORED for _ in keys]

        def close(self): pass

    class Typed(Store):
        class options(msgspec.Struct):
            root: str
            depth: int = 2

        @classmethod
        def capabilities(cls, options):
            return Capabilities(parallelism=options.depth)

    class OptionsOnly(Store):
        def __init__(self, options): self.given = options

    class Nothing(Store):
        def __init__(self): self.given = None

    class Fails(Store):
        def __init__(self, options): raise RuntimeError("no server")

    class BadCapabilities(Store):
        capabilities = {"durable": True}

    class Misspelt(Store):
        def stat(self): pass
''')


@pytest.fixture
def stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    (tmp_path / "dynamic_stores.py").write_text(STORES)
    monkeypatch.syspath_prepend(str(tmp_path))

    def choose(class_name: str, **options: Any) -> Any:
        return choose_backend("dynamic", {"module": "dynamic_stores", "class_name": class_name, **options})

    yield choose
    sys.modules.pop("dynamic_stores", None)


def opened(choice: Any) -> Any:
    return choice.spec.factory(choice.options, CTX)


def test_a_plain_class_is_opened_with_its_options(stores: Any) -> None:
    choice = stores("Store", root="/kv", depth=3)
    backend = opened(choice)
    assert (backend.given, backend.ctx) == ({"root": "/kv", "depth": 3}, CTX)
    assert choice.capabilities == Capabilities(durable=True)


def test_a_class_may_type_its_options(stores: Any) -> None:
    choice = stores("Typed", root="/kv", depth="3")
    assert (opened(choice).given.depth, choice.capabilities.parallelism) == (3, 3)
    with pytest.raises(OptionError, match=r"options of Typed.*'dept'; did you mean 'depth'"):
        opened(stores("Typed", root="/kv", dept=1))


def test_constructors_take_what_they_name(stores: Any) -> None:
    assert opened(stores("OptionsOnly", a=1)).given == {"a": 1}
    assert opened(stores("Nothing")).given is None
    with pytest.raises(OptionError, match="Nothing takes no options, got a"):
        opened(stores("Nothing", a=1))


def test_sglangs_spelling(stores: Any) -> None:
    config = {"backend_name": "ours", "module_path": "dynamic_stores", "class_name": "Store", "root": "/kv"}
    options = parse_options(DynamicOptions, config)
    assert (options.backend_name, options.module, options.options) == ("ours", "dynamic_stores", {"root": "/kv"})


def test_failures_say_what_to_mend(stores: Any) -> None:
    with pytest.raises(PluginError, match="no class 'Stor'; did you mean 'Store'"):
        opened(stores("Stor"))
    with pytest.raises(PluginError, match="module 'dynamic_shops' does not import"):
        load_class("dynamic_shops", "Store")
    with pytest.raises(OpenError, match="Fails could not be opened: no server") as caught:
        opened(stores("Fails"))
    assert isinstance(caught.value.__cause__, RuntimeError)
    with pytest.raises(PluginError, match=r"BadCapabilities\.capabilities must be"):
        _ = stores("BadCapabilities").capabilities
    with pytest.raises(HookError, match="stat is nearly named like the hook stats"):
        opened(stores("Misspelt"))


def test_module_and_class_are_required() -> None:
    with pytest.raises(OptionError, match="'module' is required"):
        choose_backend("dynamic", {"class_name": "Store"})
    with pytest.raises(OptionError, match="'class_name' is required"):
        choose_backend("dynamic", {"module": "x"})


def test_the_allow_list_is_asked_before_the_import(stores: Any) -> None:
    refused = "module 'dynamic_stores' is not on the allow-list"
    for allow in ([], ["dynamic_store"], ["dynamic_stores.sub"], ["other."]):
        with pytest.raises(ConfigError, match=refused):
            load_class("dynamic_stores", "Store", allow=allow)
    assert "dynamic_stores" not in sys.modules
    assert load_class("dynamic_stores", "Store", allow=["x", "dynamic_stores"]).__name__ == "Store"
    options = {"module": "dynamic_stores", "class_name": "Store"}
    with pytest.raises(ConfigError, match=refused):
        opened(choose_backend("dynamic", options, allow_dynamic=["os"]))


def test_the_spec_is_listed_like_any_other() -> None:
    assert DYNAMIC.name == dynamic_spec(["x"]).name == "dynamic"
    assert DYNAMIC.options is DynamicOptions
