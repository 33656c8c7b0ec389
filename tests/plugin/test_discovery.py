"""Each plugin stands alone: a broken one is named and harms no other."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import dedent

import pytest

from hicache_core.errors import DuplicateNameError, PluginError, UnknownNameError
from hicache_core.plugin import discovery
from hicache_core.plugin.discovery import DISABLE_VARIABLE, discover, find_backend
from hicache_core.types import PLUGIN_API

Install = Callable[..., str]

GOOD = dedent("""
    import msgspec
    from hicache_core.types import BackendSpec

    class Options(msgspec.Struct):
        root: str = "/x"

    def hicache_backend():
        return BackendSpec("{name}", "a fake", Options, "nowhere:open")
""")

BROKEN = {
    "import": "import a_module_that_is_not_there",
    "raises": "raise RuntimeError('no luck')",
    "exits": "raise SystemExit(3)",
    "syntax": "def (",
    "no-hook": "x = 1",
    "hook-raises": "def hicache_backend(): raise OSError('sdk')",
    "no-spec": "def hicache_backend(): return {}",
    "returns-none": "def hicache_backend(): return None",
}


def test_a_good_plugin_is_found_with_its_distribution(install: Install) -> None:
    install("acme-kv", {"acme": GOOD}, version="2.5")
    found = discover().specs["acme"]
    assert (found.spec.name, found.distribution, found.version) == ("acme", "acme-kv", "2.5")
    assert find_backend("acme") is found.spec


def test_a_decorated_hook_counts_too(install: Install) -> None:
    decorated = GOOD.replace("def hicache", "from hicache_core.plugin.spec import hookimpl\n@hookimpl\ndef hicache")
    install("acme-kv", {"acme": decorated})
    assert find_backend("acme").description == "a fake"


def test_the_entry_may_name_the_hook_itself(install: Install) -> None:
    install("acme-kv", {"acme": GOOD}, attribute=":hicache_backend")
    assert find_backend("acme").name == "acme"


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_plugin_harms_no_other(install: Install, how: str) -> None:
    install("good-kv", {"good": GOOD})
    install("bad-kv", {"bad": BROKEN[how]})
    found = discover()
    assert "good" in found.specs
    assert "bad" not in found.specs
    (broken,) = [p for p in found.broken if p.entry == "bad"]
    assert broken.distribution == "bad-kv"
    assert "'bad'" in str(broken)
    with pytest.raises(PluginError, match="bad-kv") as caught:
        find_backend("bad")
    assert caught.value.__cause__ is broken.error


def test_within_one_distribution_too(install: Install) -> None:
    install("mixed-kv", {"bad": BROKEN["raises"], "good": GOOD})
    assert "good" in discover().specs
    assert "no luck" in str(next(p for p in discover().broken if p.entry == "bad"))


@pytest.mark.parametrize("api", [PLUGIN_API + 1, PLUGIN_API - 1])
def test_another_plugin_api_is_recorded_with_both_versions(install: Install, api: int) -> None:
    install("old-kv", {"old": GOOD.replace('"nowhere:open"', f'"nowhere:open", plugin_api={api}')})
    (broken,) = [p for p in discover().broken if p.entry == "old"]
    assert f"PLUGIN_API {api}" in str(broken)
    assert f"PLUGIN_API {PLUGIN_API}" in str(broken)
    assert "upgrade" in str(broken)


@pytest.mark.parametrize("options", ["dict", "Bad"])
def test_options_with_unsound_types_are_recorded(install: Install, options: str) -> None:
    bad = 'from typing import Annotated\nclass Bad(msgspec.Struct):\n    x: Annotated[str, msgspec.Meta(gt=0)] = ""\n'
    source = GOOD.replace("class Options", bad + "class Options").replace('"a fake", Options', f'"a fake", {options}')
    install("bad-kv", {"bad": source})
    assert "no msgspec.Struct" in str(next(p for p in discover().broken if p.entry == "bad"))


def test_entry_and_spec_must_have_one_name(install: Install) -> None:
    install("two-kv", {"two": GOOD.replace("{name}", "three")})
    assert "'three'" in str(next(p for p in discover().broken if p.entry == "two"))


def test_two_distributions_with_one_name_are_both_named(install: Install) -> None:
    install("first-kv", {"same": GOOD})
    install("second-kv", {"same": GOOD, "other": GOOD})
    found = discover()
    assert "same" not in found.specs
    assert "other" in found.specs
    with pytest.raises(DuplicateNameError, match=r"first-kv 1\.0 and second-kv 1\.0"):
        find_backend("same")


def test_disabling_a_distribution_settles_a_duplicate(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install("first-kv", {"same": GOOD})
    install("second-kv", {"same": GOOD})
    monkeypatch.setenv(DISABLE_VARIABLE, "First_KV")
    assert discover().specs["same"].distribution == "second-kv"


def test_disabled_plugins_are_not_imported(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install("good-kv", {"good": GOOD})
    install("bad-kv", {"bad": BROKEN["raises"]})
    monkeypatch.setenv(DISABLE_VARIABLE, "bad, good")
    found = discover()
    assert not [p for p in found.broken if p.entry == "bad"]
    assert set(found.disabled) >= {"bad", "good"}
    with pytest.raises(PluginError, match="disabled by HICACHE_DISABLE_PLUGINS"):
        find_backend("good")
    assert "good" in discover(disable="bad").specs


def test_an_unknown_name_gets_the_nearest(install: Install) -> None:
    install("acme-kv", {"acme": GOOD})
    with pytest.raises(UnknownNameError, match="did you mean 'acme'") as caught:
        find_backend("amce")
    assert "dynamic" in caught.value.known


def test_a_backend_of_this_project_comes_with_its_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "discover", lambda disable=None: discovery.Discovery())
    with pytest.raises(UnknownNameError, match="not installed: pip install hicache-file"):
        find_backend("file")


def test_nobody_may_take_the_name_dynamic(install: Install) -> None:
    install("thief-kv", {"dynamic": GOOD})
    with pytest.raises(DuplicateNameError, match=r"thief-kv.*hicache-core itself"):
        find_backend("dynamic")


def test_discovery_is_kept_for_the_process(install: Install) -> None:
    install("acme-kv", {"acme": GOOD})
    assert discover() is discover()
