"""One backend, by name or by URL, exactly one of the two."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from textwrap import dedent
from typing import Any

import pytest

from hicache_core.errors import (
    ConfigError,
    HookError,
    MissingDependencyError,
    OpenError,
    OptionError,
    PluginError,
    UnknownNameError,
)
from hicache_core.plugin.select import BackendChoice, choose_backend, open_backend, resolve_dotted
from hicache_core.plugin.spec import hookimpl
from hicache_core.types import OpenContext, SdkRequirement

PLUGIN = dedent("""
    from urllib.parse import urlsplit
    import msgspec
    from hicache_core.types import BackendSpec, Capabilities

    class Options(msgspec.Struct, kw_only=True):
        root: str = "/default"
        size: int = 1
        secret_key: str = ""

    def from_url(url):
        return {"root": urlsplit(url).path}

    def hicache_backend():
        return BackendSpec("{name}", "a fake", Options, "nowhere:open",
            capabilities=lambda o: Capabilities(parallelism=o.size),
            options_from_url=__name__ + ":from_url" if "{name}" == "disk" else None)
""")


@pytest.fixture(autouse=True)
def plugins(install: Callable[..., str]) -> str:
    return install("acme-kv", {"disk": PLUGIN, "plain": PLUGIN})


def test_by_name() -> None:
    choice = choose_backend("disk", {"root": "/kv", "size": 4})
    assert (choice.spec.name, choice.options.root, choice.capabilities.parallelism) == ("disk", "/kv", 4)
    assert choice.source == "backend disk"


def test_by_mapping() -> None:
    assert choose_backend({"backend": "disk"}).options.root == "/default"
    assert choose_backend({"backend": "disk", "options": {"root": "/kv"}}).options.root == "/kv"
    assert choose_backend({"backend": "disk"}, {"root": "/kv"}).options.root == "/kv"
    assert choose_backend({"url": "disk:///kv?size=3"}).options.size == 3


def test_by_url() -> None:
    choice = choose_backend("disk:///kv/a?size=3")
    assert (choice.options.root, choice.options.size) == ("/kv/a", 3)
    assert choose_backend("plain://?root=/x&size=2").options.root == "/x"


def test_a_choice_is_taken_as_it_is() -> None:
    choice = choose_backend("disk", {"root": "/kv"})
    assert choose_backend(choice) is choice
    with pytest.raises(ConfigError, match="no effect"):
        choose_backend(choice, {"root": "/x"})
    assert choose_backend("disk", choice.options).options is choice.options
    with pytest.raises(OptionError, match="takes Options, got Options"):
        choose_backend("plain", choice.options)


def test_text_only_where_it_was_asked_for() -> None:
    with pytest.raises(OptionError, match="'size'"):
        choose_backend("disk", {"size": "4"})
    assert choose_backend("disk", {"size": "4"}, strict=False).options.size == 4


BAD: list[tuple[Any, Any, type[Exception], str]] = [
    ("dsik", None, UnknownNameError, "did you mean 'disk'"),
    ("dsik:///kv", None, UnknownNameError, "did you mean 'disk'"),
    ({}, None, ConfigError, "neither of backend and url"),
    ({"backend": "disk", "url": "disk:///x"}, None, ConfigError, "both of backend and url"),
    ({"url": "disk"}, None, ConfigError, "'disk' stands under url"),
    ({"backend": "disk:///x"}, None, ConfigError, "stands under backend"),
    ({"backend": "disk", "option": {}}, None, OptionError, "unknown key 'option'"),
    ({"backend": "disk", "options": [1]}, None, OptionError, "must be a mapping, got list"),
    ({"backend": 5}, None, OptionError, "are text, got 5"),
    ({"backend": "disk", "options": {"root": "/a"}}, {"root": "/b"}, ConfigError, "given twice"),
    ("disk:///x", {"size": 1}, ConfigError, "beside the URL disk:///x"),
    ("disk:///x?size=1&size=2", None, OptionError, "'size' is given twice"),
    ('{"url": "disk:///x"}', None, OptionError, "begins with the backend's name"),
    ("disk:///x?size", None, OptionError, "no URL that can be read"),
    ("disk:///x?sise=1", None, OptionError, "did you mean 'size'"),
    ("plain://host/x", None, OptionError, "from the query only"),
    ("disk", {"rot": "/x"}, OptionError, "backend 'disk': unknown option 'rot'; did you mean 'root'"),
]


@pytest.mark.parametrize(("choice", "options", "error", "said"), BAD)
def test_a_bad_choice_is_refused(choice: Any, options: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        choose_backend(choice, options)


def test_secrets_do_not_show() -> None:
    choice = choose_backend("disk://user:hunter2@/kv?secret_key=hunter2")
    assert choice.options.secret_key == "hunter2"
    assert "hunter2" not in choice.source
    assert choice.shown_options()["secret_key"] == "***"
    with pytest.raises(ConfigError) as caught:
        choose_backend("disk://u:hunter2@/kv", {"size": 1})
    assert "hunter2" not in str(caught.value)


def test_dotted_names() -> None:
    assert resolve_dotted("os.path:join", "factory").__name__ == "join"
    for path, said in [
        ("nowhere:x", "cannot be found"),
        ("os:nothing", "cannot be found"),
        ("os:sep", "not callable"),
        ("os", "not callable"),
    ]:
        with pytest.raises(
            PluginError, match=f"factory '{path}' {'is ' if 'not' in said and 'call' in said else ''}{said}"
        ):
            resolve_dotted(path, "factory")


class Opened:
    """What the fakes' factories return."""

    def __init__(self, options: Any, ctx: OpenContext) -> None:
        self.options, self.ctx = options, ctx

    @hookimpl
    def batch_exists(self, keys: Any) -> int:
        return 0

    @hookimpl
    def batch_get(self, keys: Any) -> list[Any]:
        return []

    @hookimpl
    def batch_set(self, keys: Any) -> list[Any]:
        return []

    @hookimpl
    def close(self) -> None: ...


CTX = OpenContext(namespace="0" * 32)


def chosen(**changes: Any) -> BackendChoice:
    choice = choose_backend("disk", {"root": "/kv"})
    return dataclasses.replace(choice, spec=dataclasses.replace(choice.spec, **changes))


def test_a_backend_is_opened_and_checked() -> None:
    backend = open_backend(chosen(factory=Opened), CTX)
    assert isinstance(backend, Opened)
    assert (backend.options.root, backend.ctx) == ("/kv", CTX)
    with pytest.raises(HookError, match="lacks the required hook"):
        open_backend(chosen(factory=lambda options, ctx: object()), CTX)


def test_a_missing_sdk_comes_with_its_install_line() -> None:
    needs = (SdkRequirement("os", "-"), SdkRequirement("acme_sdk.core", "pip install acme-sdk"))
    with pytest.raises(
        MissingDependencyError, match=r"'disk' needs the module 'acme_sdk\.core': pip install acme-sdk"
    ):
        open_backend(chosen(factory=Opened, requires=needs), CTX)


def test_a_factory_that_fails_keeps_its_cause() -> None:
    def refuse(options: Any, ctx: OpenContext) -> object:
        raise PermissionError("/kv is not writable")

    def refuse_well(options: Any, ctx: OpenContext) -> object:
        raise ConfigError("root is a symlink")

    with pytest.raises(OpenError, match="'disk' could not be opened: PermissionError: /kv is not writable") as caught:
        open_backend(chosen(factory=refuse), CTX)
    assert isinstance(caught.value.__cause__, PermissionError)
    with pytest.raises(ConfigError, match="root is a symlink"):
        open_backend(chosen(factory=refuse_well), CTX)
    with pytest.raises(PluginError, match="factory of backend disk 'nowhere:open' cannot be found"):
        open_backend(choose_backend("disk"), CTX)


@pytest.mark.parametrize(
    "url",
    [
        "disk:///x?hunter2",
        "disk:///x?size=1&hunter2",
        "disk://me:hunter2@host/x?size",
        "disk://me:hunter2@[host/x",
        "disk://me:hunter2@h\u2100st/x",
        "memory://me:hunter2@host/x",
        "nowhere://me:hunter2@host/x?hunter2",
        "file://me:hunter2@host/x?token=hunter2",
    ],
)
def test_what_is_wrong_with_a_url_is_said_without_its_secrets(url: str) -> None:
    with pytest.raises((ConfigError, PluginError)) as caught:
        choose_backend(url)
    error: BaseException | None = caught.value
    while error is not None:
        assert "hunter2" not in str(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
