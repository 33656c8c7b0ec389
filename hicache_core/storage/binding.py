"""Calling a backend object's hooks directly, beneath pluggy: each with the arguments that it names."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from hicache_core.plugin.checks import HOOKS, MARK
from hicache_core.plugin.spec import is_pagewise


class HookBinding:
    """The hooks of one backend object as callables that take keyword arguments.

    The core's defaults and wrapping backends (`fault`) use it: pluggy's own call would run the observers again.
    The object's hooks have been checked (`check_hooks`) before.
    """

    def __init__(self, backend: object) -> None:
        self._bound: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {}
        for attribute in dir(backend):
            static = inspect.getattr_static(backend, attribute, None)
            options = getattr(getattr(static, "__func__", static), MARK, None) or getattr(static, MARK, None)
            if isinstance(options, dict):
                name = options.get("specname") or attribute
                if name in HOOKS:
                    method = getattr(backend, attribute)
                    wanted = tuple(a for a in inspect.signature(method).parameters if a in HOOKS[name])
                    self._bound[name] = (method, wanted)

    def pagewise(self, hook: str) -> bool:
        """Whether batch_get or batch_set (`hook`), and its v1 where there is one, are marked `pagewise`."""
        methods = [self._bound[name][0] for name in (hook, f"{hook}_v1") if name in self._bound]
        return all(map(is_pagewise, methods))

    def __contains__(self, name: str) -> bool:
        return name in self._bound

    def call(self, name: str, **arguments: Any) -> Any:
        """Call a hook; None where the backend does not have it."""
        found = self._bound.get(name)
        if found is None:
            return None
        method, wanted = found
        return method(*[arguments[argument] for argument in wanted])
