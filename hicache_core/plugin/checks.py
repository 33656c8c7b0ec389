"""Whether a backend's hooks can be called as the contract calls them; asked once, when a session opens."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

from hicache_core.errors import HookError, nearest
from hicache_core.plugin.spec import PROJECT, REQUIRED_HOOKS, DataPlaneSpec

MARK = f"{PROJECT}_impl"
"""Attribute that hookimpl sets on a function."""

_PLAIN = {
    "wrapper": False,
    "hookwrapper": False,
    "optionalhook": False,
    "tryfirst": False,
    "trylast": False,
    "specname": None,
}
"""What a bare @hookimpl marks a function with."""

_NEAR = 0.8


def _spec_arguments() -> dict[str, tuple[str, ...]]:
    hooks = {n: f for n, f in vars(DataPlaneSpec).items() if not n.startswith("_")}
    return {name: tuple(inspect.signature(f).parameters)[1:] for name, f in hooks.items()}


HOOKS = _spec_arguments()
"""Every hook of the data plane and the arguments that it may name."""


def check_hooks(backend: object, dynamic: bool = False) -> list[str]:
    """The hooks that `backend` implements, sorted.

    Raises HookError, naming the hook, for: a required one that is missing, a misspelt one, one that cannot be
    called with the contract's keywords (*args, **kwargs, keyword-only, positional-only or unknown parameters,
    a contract argument with a default, which pluggy would never pass), one that is async or a generator, and
    tryfirst, trylast, wrapper. dynamic: undecorated methods of a hook's name count, and a public method that is
    nearly named like a hook is an error too.
    """
    found: dict[str, Callable[..., Any]] = {}
    others: list[str] = []
    for name, method in _methods(backend):
        options = getattr(method, MARK, None)
        if isinstance(options, dict):
            hook = options.get("specname") or name
            _check_options(name, hook, options)
            if hook in HOOKS:
                found[hook] = method
        elif name in HOOKS and dynamic:
            found[name] = method
        else:
            others.append(name)
    _check_missing(backend, found, others)
    if dynamic:
        _check_near_misses(backend, found, others)
    for hook, method in found.items():
        _check_signature(hook, method)
    return sorted(found)


def mark_hooks(backend: object) -> None:
    """Mark the undecorated hooks of a `dynamic` backend, as `@hookimpl` would, so that pluggy sees them.

    Raises HookError where a method cannot carry the mark (one that is not a Python function).
    """
    for name, method in _methods(backend):
        if name in HOOKS and getattr(method, MARK, None) is None:
            function = getattr(method, "__func__", method)
            try:
                setattr(function, MARK, dict(_PLAIN))
            except AttributeError:
                raise HookError(f"hook {name}: {function!r} is not a Python function; define it with def") from None


def _methods(backend: object) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Public methods. Properties are not evaluated: they might do I/O."""
    for name in dir(backend):
        if name.startswith("_"):
            continue
        static = inspect.getattr_static(backend, name, None)
        if isinstance(static, property) or not (callable(static) or isinstance(static, staticmethod | classmethod)):
            continue
        method = getattr(backend, name)
        if inspect.isroutine(method):
            yield name, method
        elif name in HOOKS and not inspect.isclass(method):
            raise HookError(f"hook {name}: {method!r} is callable but no method; define it with def")


def _check_options(name: str, hook: str, options: dict[str, Any]) -> None:
    for refused in ("tryfirst", "trylast", "wrapper", "hookwrapper"):
        if options.get(refused):
            raise HookError(f"hook {name}: {refused} is refused on a backend's hooks; the core decides the order")
    if hook not in HOOKS and not options.get("optionalhook"):
        near = nearest(hook, HOOKS)
        hint = f"did you mean {near}?" if near else f"Hooks: {', '.join(HOOKS)}."
        raise HookError(f"{hook} is decorated with @hookimpl but is no hook of the contract; {hint}")


def _check_missing(backend: object, found: dict[str, Any], others: list[str]) -> None:
    missing = [hook for hook in REQUIRED_HOOKS if hook not in found]
    if not missing:
        return
    kind = type(backend).__name__
    bare = [hook for hook in missing if hook in others]
    if bare:
        raise HookError(
            f"{kind}.{bare[0]} is not decorated with @hookimpl (hicache_core.plugin.spec), so it is no hook"
        )
    near = [other for hook in missing for other in others if _alike(other, hook)]
    hint = f" Its method {near[0]} is nearly named so." if near else ""
    raise HookError(
        f"{kind} lacks the required hook {', '.join(missing)}.{hint} Required: {', '.join(REQUIRED_HOOKS)}."
    )


def _check_near_misses(backend: object, found: dict[str, Any], others: list[str]) -> None:
    """Only hooks that are not there can have been meant: `closed()` beside `close()` is no typing error."""
    for name in others:
        best = max(HOOKS, key=lambda hook: _likeness(name, hook))
        if best not in found and _alike(name, best):
            raise HookError(
                f"{type(backend).__name__}.{name} is nearly named like the hook {best} and would never be called; "
                f"rename it to {best}, or begin its name with an underscore"
            )


def _alike(name: str, hook: str) -> bool:
    return _likeness(name, hook) >= _NEAR


def _likeness(name: str, hook: str) -> float:
    """1.0 for the same letters or the same words in another order (batchGet, register_pool_host)."""
    a, b = name.lower().replace("_", ""), hook.replace("_", "")
    if a == b or sorted(name.lower().split("_")) == sorted(hook.split("_")):
        return 1.0
    return difflib.SequenceMatcher(None, a, b).ratio()


def _check_signature(hook: str, method: Callable[..., Any]) -> None:
    if inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method):
        raise HookError(f"hook {hook} is async; hooks are called from worker threads and must return their result")
    if inspect.isgeneratorfunction(method):
        raise HookError(f"hook {hook} is a generator; it must return its result")
    for parameter in inspect.signature(method).parameters.values():
        _check_parameter(hook, parameter)


def _check_parameter(hook: str, parameter: inspect.Parameter) -> None:
    name, has_default = parameter.name, parameter.default is not inspect.Parameter.empty
    takes = f"It may take: {', '.join(HOOKS[hook]) or 'nothing'}."
    kinds = {
        inspect.Parameter.VAR_POSITIONAL: f"*{name}",
        inspect.Parameter.VAR_KEYWORD: f"**{name}",
        inspect.Parameter.KEYWORD_ONLY: f"the keyword-only parameter {name}",
        inspect.Parameter.POSITIONAL_ONLY: f"the positional-only parameter {name}",
    }
    if parameter.kind in kinds:
        raise HookError(f"hook {hook} has {kinds[parameter.kind]}, which the contract cannot pass. {takes}")
    if name in HOOKS[hook] and has_default:
        raise HookError(
            f"hook {hook}: parameter {name} has a default, so it would never be passed; remove the default"
        )
    if name not in HOOKS[hook] and not has_default:
        near = nearest(name, HOOKS[hook])
        hint = f"did you mean {near}? " if near else ""
        raise HookError(f"hook {hook}: unknown parameter {name}; {hint}{takes}")
