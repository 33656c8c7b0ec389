"""A hook that could not be called is refused when the session opens, by name."""

from __future__ import annotations

from functools import partial
from typing import Any

import pluggy
import pytest

from hicache_core.errors import HookError
from hicache_core.plugin.checks import HOOKS, check_hooks, mark_hooks
from hicache_core.plugin.spec import PROJECT, REQUIRED_HOOKS, DataPlaneSpec, hookimpl


class Plain:
    """The four required hooks, undecorated."""

    def batch_exists(self, keys: Any, ctx: Any) -> int:
        return 0

    def batch_get(self, keys: Any, pages: Any) -> list[Any]:
        return []

    def batch_set(self, keys: Any, pages: Any, ctx: Any) -> list[Any]:
        return []

    def close(self) -> None: ...


class Decorated:
    @hookimpl
    def batch_exists(self, keys: Any) -> int:
        return 0

    @hookimpl
    def batch_get(self, keys: Any, pages: Any, ctx: Any) -> list[Any]:
        return []

    @hookimpl
    def batch_set(self, keys: Any, pages: Any, ctx: Any) -> list[Any]:
        return []

    @hookimpl
    def close(self) -> None: ...


def with_method(base: type, name: str, method: Any) -> object:
    return type("Store", (base,), {name: method})()


def test_the_hooks_are_named() -> None:
    assert check_hooks(Decorated()) == sorted(REQUIRED_HOOKS)
    assert check_hooks(Plain(), dynamic=True) == sorted(REQUIRED_HOOKS)
    more = with_method(Plain, "delete", lambda self, keys: None)
    assert check_hooks(more, dynamic=True) == sorted([*REQUIRED_HOOKS, "delete"])


def test_every_hookspec_is_known() -> None:
    assert set(REQUIRED_HOOKS) < set(HOOKS)
    assert HOOKS["batch_get"] == ("keys", "pages", "ctx")
    assert HOOKS["close"] == ()


@pytest.mark.parametrize("hook", REQUIRED_HOOKS)
@pytest.mark.parametrize("base", [Plain, Decorated])
def test_a_missing_required_hook_is_named(base: type, hook: str) -> None:
    methods = {name: method for name, method in vars(base).items() if name in REQUIRED_HOOKS and name != hook}
    with pytest.raises(HookError, match=f"Store lacks the required hook {hook}"):
        check_hooks(type("Store", (), methods)(), dynamic=base is Plain)


def test_an_undecorated_required_hook_is_named() -> None:
    with pytest.raises(HookError, match=r"batch_set is not decorated with @hookimpl"):
        check_hooks(with_method(Decorated, "batch_set", lambda self, keys, pages: []))


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("batch_gett", "batch_get"),
        ("batchGet", "batch_get"),
        ("batch_exist", "batch_exists"),
        ("closed", "close"),
    ],
)
def test_a_required_hook_misspelt(name: str, meant: str) -> None:
    methods = {n: m for n, m in vars(Plain).items() if n in REQUIRED_HOOKS and n != meant}
    methods[name] = getattr(Plain, meant)
    with pytest.raises(HookError, match=f"required hook {meant}.*{name} is nearly named so"):
        check_hooks(type("Store", (), methods)(), dynamic=True)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("batch_get_v3", "batch_get_v"),
        ("stat", "stats"),
        ("batch_contain", "batch_contains"),
        ("register_pool_host", "register_host_pool"),
        ("Delete", "delete"),
    ],
)
def test_an_optional_hook_misspelt_in_a_dynamic_backend(name: str, meant: str) -> None:
    store = with_method(Plain, name, lambda self: None)
    with pytest.raises(HookError, match=f"{name} is nearly named like the hook {meant}"):
        check_hooks(store, dynamic=True)


@pytest.mark.parametrize("name", ["closed", "batch_sets", "_stat", "describe", "get", "exists", "put_many"])
def test_other_methods_are_free(name: str) -> None:
    assert check_hooks(with_method(Plain, name, lambda self: None), dynamic=True) == sorted(REQUIRED_HOOKS)
    assert check_hooks(with_method(Decorated, name, lambda self: None)) == sorted(REQUIRED_HOOKS)


def test_a_decorated_method_that_is_no_hook() -> None:
    store = with_method(Decorated, "batch_gets", hookimpl(lambda self, keys: None))
    with pytest.raises(HookError, match=r"batch_gets is decorated .* did you mean batch_get"):
        check_hooks(store)
    later = with_method(Decorated, "batch_v9", hookimpl(lambda self, keys: None, optionalhook=True))
    assert check_hooks(later) == sorted(REQUIRED_HOOKS)


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (lambda self, *keys: [], r"hook batch_get has \*keys"),
        (lambda self, keys, **more: [], r"hook batch_get has \*\*more"),
        (lambda self, keys, *, ctx: [], "keyword-only parameter ctx"),
        (lambda self, keys, /, pages: [], "positional-only parameter keys"),
        (lambda self, keys, pages, ctx=None: [], "parameter ctx has a default"),
        (lambda self, key, pages: [], "unknown parameter key; did you mean keys"),
        (lambda self, keys, where: [], "unknown parameter where; It may take: keys, pages, ctx"),
    ],
)
@pytest.mark.parametrize("base", [Plain, Decorated])
def test_a_signature_that_cannot_be_called(base: type, method: Any, said: str) -> None:
    method = hookimpl(method) if base is Decorated else method
    with pytest.raises(HookError, match=said):
        check_hooks(with_method(base, "batch_get", method), dynamic=base is Plain)


def test_a_further_parameter_with_a_default_is_free() -> None:
    store = with_method(Plain, "close", lambda self, hurry=False: None)
    assert "close" in check_hooks(store, dynamic=True)


def test_async_and_generators_are_refused() -> None:
    async def batch_get(self: Any, keys: Any) -> list[Any]:
        return []

    def batch_set(self: Any, keys: Any) -> Any:
        yield []

    with pytest.raises(HookError, match="batch_get is async"):
        check_hooks(with_method(Plain, "batch_get", batch_get), dynamic=True)
    with pytest.raises(HookError, match="batch_set is a generator"):
        check_hooks(with_method(Plain, "batch_set", batch_set), dynamic=True)


@pytest.mark.parametrize("option", ["tryfirst", "trylast", "wrapper", "hookwrapper"])
@pytest.mark.parametrize("dynamic", [True, False])
def test_a_backend_does_not_choose_its_place(option: str, dynamic: bool) -> None:
    def batch_get(self: Any, keys: Any) -> Any:
        yield

    store = with_method(Decorated, "batch_get", hookimpl(batch_get, **{option: True}))
    with pytest.raises(HookError, match=f"hook batch_get: {option} is refused"):
        check_hooks(store, dynamic=dynamic)


def test_a_hook_under_another_name() -> None:
    store = with_method(Decorated, "remove", hookimpl(lambda self, keys: None, specname="delete"))
    assert "delete" in check_hooks(store)


def test_properties_are_not_evaluated() -> None:
    def boom(self: Any) -> None:
        raise AssertionError("a property was evaluated")

    assert check_hooks(with_method(Plain, "healthy", property(boom)), dynamic=True) == sorted(REQUIRED_HOOKS)


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(HookError, match=r"batch_get.*define it with def"):
        check_hooks(with_method(Plain, "batch_get", partial(print)), dynamic=True)


def test_marked_hooks_are_seen_by_pluggy() -> None:
    class Store(Plain):
        pass

    store = Store()
    mark_hooks(store)
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(DataPlaneSpec)
    manager.register(store)
    assert manager.hook.batch_exists(keys=["a"], ctx=None) == 0
    assert check_hooks(store) == check_hooks(store, dynamic=True) == sorted(REQUIRED_HOOKS)
