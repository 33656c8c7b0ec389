"""doctor names what is broken and how to mend it, and survives everything that it finds."""

from __future__ import annotations

import importlib.metadata
import resource
import subprocess
import sys
from collections.abc import Callable
from textwrap import dedent

import pytest

from hicache_core.plugin import environment
from hicache_core.plugin.discovery import discover
from hicache_core.plugin.doctor import Finding, diagnose, examine_plugins

Install = Callable[..., str]

SOURCE = dedent("""
    import msgspec
    from hicache_core.types import BackendSpec, SdkRequirement

    class Options(msgspec.Struct):
        root: str = "/x"

    def well(options): return []
    def ill(options): return ["server answers slowly", "clock is wrong"]
    def fails(options): raise OSError("no route")

    def hicache_backend():
        return BackendSpec("{name}", "a fake", Options, "nowhere:open"%s)
""")


def findings(name: str) -> list[Finding]:
    return [f for f in examine_plugins(discover()) if f.subject == f"backend {name}"]


def test_a_sound_plugin_is_ok(install: Install) -> None:
    install("acme-kv", {"acme": SOURCE % ', probe=__name__ + ":well"'}, version="2.0")
    assert findings("acme") == [Finding("ok", "backend acme", "acme-kv 2.0")]


def test_a_fake_is_called_one(install: Install) -> None:
    install("acme-kv", {"acme": SOURCE % ", fake=True"})
    assert "runs on a fake" in findings("acme")[0].message


def test_a_missing_sdk_comes_with_its_install_line(install: Install) -> None:
    needs = ', requires=(SdkRequirement("acme_sdk", "pip install acme-sdk"), SdkRequirement("os", "-")), probe="x:y"'
    install("acme-kv", {"acme": SOURCE % needs})
    (finding,) = findings("acme")
    assert (finding.level, finding.mend) == ("warn", "pip install acme-sdk")
    assert "'acme_sdk' is not installed" in finding.message


def test_what_the_core_brings_unasked_is_no_problem(install: Install) -> None:
    install("hicache-core", {"acme": SOURCE % ', requires=(SdkRequirement("acme_sdk", "pip install acme-sdk"),)'})
    (finding,) = findings("acme")
    assert (finding.level, finding.mend) == ("ok", "pip install acme-sdk")
    assert "needed only by this backend" in finding.message


@pytest.mark.parametrize(
    ("probe", "said"),
    [
        ('__name__ + ":ill"', ["server answers slowly", "clock is wrong"]),
        ('__name__ + ":fails"', ["its probe failed: OSError: no route"]),
        ('"nowhere:probe"', ["probe of backend acme 'nowhere:probe' cannot be found"]),
    ],
)
def test_what_a_probe_says_is_told(install: Install, probe: str, said: list[str]) -> None:
    install("acme-kv", {"acme": SOURCE % f", probe={probe}"})
    found = findings("acme")
    assert [f.level for f in found] == ["warn"] * len(said)
    assert all(text in f.message for text, f in zip(said, found, strict=True))


def test_broken_duplicate_and_disabled_plugins(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install("bad-kv", {"bad": "import acme_sdk_core", "worse": "1 / 0", "unwanted": SOURCE % ""})
    install("one-kv", {"same": SOURCE % ""})
    install("two-kv", {"same": SOURCE % ""})
    monkeypatch.setenv("HICACHE_DISABLE_PLUGINS", "unwanted")
    (bad,), (worse,), (same,), (unwanted,) = map(findings, ("bad", "worse", "same", "unwanted"))
    assert (bad.level, worse.level, same.level, unwanted.level) == ("error", "error", "error", "ok")
    assert "install the module 'acme_sdk_core'" in bad.mend
    assert "HICACHE_DISABLE_PLUGINS=bad" in bad.mend
    assert "ZeroDivisionError" in worse.message
    assert "bad-kv" in worse.mend
    assert "one-kv 1.0 and two-kv 1.0" in same.message
    assert "disabled" in unwanted.message


def test_the_environment_is_examined() -> None:
    found = {f.subject: f for f in diagnose(env={})}
    for subject in ("python", "hicache-core", "numpy", "pluggy", "msgspec", "xxhash", "torch", "cpu", "memory"):
        assert found[subject].level in ("ok", "warn"), found[subject]
        assert found[subject].message
    assert found["numpy"].message == importlib.metadata.version("numpy")
    assert {"locked memory", "open files", "backend dynamic"} <= set(found)


def test_a_missing_or_old_library_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"numpy": "1.20.1", "xxhash": None, "torch": None}
    real = environment._version
    monkeypatch.setattr(
        environment, "_version", lambda name: versions.get(name, real(name)) if name in versions else real(name)
    )
    found = {f.subject: f for f in diagnose(env={})}
    assert found["numpy"].level == "error"
    assert "older than" in found["numpy"].message
    assert "numpy" in found["numpy"].mend
    assert (found["xxhash"].level, found["xxhash"].message) == ("error", "not installed")
    assert found["torch"].level == "ok"
    assert "hicache-core[torch]" in found["torch"].mend


def test_unknown_variables_are_warned_about() -> None:
    env = {"HICACHE_RATOI": "2", "HICACHE_RATIO": "2", "HICACHE_DISABLE_PLUGINS": "", "HICACHE_ZZZ": "1"}
    found = {f.subject: f for f in diagnose(env=env)}
    assert found["HICACHE_RATOI"].mend == "did you mean HICACHE_RATIO?"
    assert found["HICACHE_ZZZ"].level == "warn"
    assert "HICACHE_RATIO" not in found
    assert "HICACHE_DISABLE_PLUGINS" not in found


def test_low_limits_are_warned_about(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (256, 256))
    monkeypatch.setattr(environment, "_DEVICES", (str(tmp_path),))
    found = {f.subject: f for f in diagnose(env={})}
    assert (found["open files"].level, found["locked memory"].level) == ("warn", "warn")
    assert "ulimit -n" in found["open files"].mend
    assert "ulimit -l" in found["locked memory"].mend


def test_doctor_imports_no_torch() -> None:
    code = "import sys; from hicache_core.plugin.doctor import diagnose; diagnose(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
