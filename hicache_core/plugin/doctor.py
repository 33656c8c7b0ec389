"""`hicache doctor`: what is there, what is broken, and how to mend it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from hicache_core.errors import PluginError
from hicache_core.plugin.discovery import DISABLE_VARIABLE, BrokenPlugin, Discovery, FoundBackend, discover
from hicache_core.plugin.engines import examine_engines
from hicache_core.plugin.environment import Finding, examine_environment
from hicache_core.plugin.select import module_exists, resolve_dotted

CORE = "hicache-core"

__all__ = ["Finding", "diagnose", "examine_plugins"]


def diagnose(*, disable: Iterable[str] | str | None = None, env: Mapping[str, str] | None = None) -> list[Finding]:
    """Everything that doctor looks at: the environment, the engines, every plugin. Never raises for what it finds.

    disable: as of `discover`. env: where HICACHE_* variables are read, default os.environ.
    """
    return [*examine_environment(env), *examine_engines(), *examine_plugins(discover(disable=disable))]


def examine_plugins(found: Discovery) -> list[Finding]:
    """One finding or more for every backend that is installed."""
    findings: list[Finding] = []
    for name in sorted(found.specs):
        findings += _backend(found.specs[name])
    for plugin in found.broken:
        findings.append(_broken(plugin))
    for name, owners in sorted(found.duplicates.items()):
        message = f"claimed by {' and '.join(owners)}; none of them can be used"
        mend = f"uninstall one, or set {DISABLE_VARIABLE} to the name of the distribution that is not wanted"
        findings.append(Finding("error", f"backend {name}", message, mend))
    for name in sorted(found.disabled):
        findings.append(Finding("ok", f"backend {name}", f"disabled by {DISABLE_VARIABLE}"))
    return findings


def _backend(found: FoundBackend) -> Iterator[Finding]:
    spec = found.spec
    subject = f"backend {spec.name}"
    origin = f"{found.distribution} {found.version}" + (", runs on a fake of its store" if spec.fake else "")
    missing = [need for need in spec.requires if not module_exists(need.module)]
    asked_for = found.distribution != CORE  # what comes with the core unasked is nobody's problem yet
    for need in missing:
        message = f"{origin}: the module {need.module!r} is not installed"
        message += "" if asked_for else "; needed only by this backend"
        yield Finding("warn" if asked_for else "ok", subject, message, need.install)
    if missing:  # the probe would ask the SDK that is not there
        return
    complaints = _probe(found)
    for complaint in complaints:
        yield Finding("warn", subject, f"{origin}: {complaint}")
    if not complaints:
        yield Finding("ok", subject, origin)


def _probe(found: FoundBackend) -> list[str]:
    """What the plugin's own probe says; its failure is a complaint too."""
    if found.spec.probe is None:
        return []
    try:
        probe = resolve_dotted(found.spec.probe, f"probe of backend {found.spec.name}")
        return [str(complaint) for complaint in probe(None)]
    except PluginError as error:
        return [str(error)]
    except Exception as error:  # noqa: BLE001 - a plugin's probe may fail in any way, and doctor must go on
        return [f"its probe failed: {type(error).__name__}: {error}"]


def _broken(plugin: BrokenPlugin) -> Finding:
    subject = f"backend {plugin.entry}"
    message = f"{plugin.distribution} {plugin.version}: {type(plugin.error).__name__}: {plugin.error}"
    quiet = f"or set {DISABLE_VARIABLE}={plugin.entry}"
    if isinstance(plugin.error, ModuleNotFoundError) and plugin.error.name:
        return Finding("error", subject, message, f"install the module {plugin.error.name!r}, {quiet}")
    return Finding("error", subject, message, f"pip install --upgrade {plugin.distribution}, {quiet}")
