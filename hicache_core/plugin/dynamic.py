"""The backend `dynamic`: a class named by module and class name, without any packaging.

    {"backend": "dynamic", "options": {"module": "my.store", "class_name": "MyStore", "root": "/kv"}}

The class is called with as many of (options, ctx) as its constructor takes. `options` is the mapping of all options
that are not `dynamic`'s own, or, where the class has an attribute `options` that is a msgspec.Struct type, that
struct. Its undecorated methods of the hooks' names are its hooks; an attribute `capabilities` may declare more than
the defaults. Importing a module runs its code: whoever may name it may run code here, so doors that are open to
others (HTTP) must pass an allow-list.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from hicache_core.errors import ConfigError, OpenError, OptionError, PluginError, nearest
from hicache_core.plugin.checks import check_hooks, mark_hooks
from hicache_core.plugin.options import parse_options
from hicache_core.types import BackendSpec, Capabilities, OpenContext


class DynamicOptions(msgspec.Struct, kw_only=True, frozen=True):
    """Options of `dynamic`. SGLang's spelling module_path is taken too."""

    PASSTHROUGH: ClassVar[str] = "options"
    ALIASES: ClassVar[Mapping[str, str]] = {"module_path": "module"}

    module: Annotated[str, Meta(description="module that holds the class, as in an import statement")]
    class_name: Annotated[str, Meta(description="the class")]
    backend_name: Annotated[str, Meta(description="what reports call it; by default the class name")] = ""
    options: Annotated[dict[str, Any], Meta(description="the class's own options")] = {}


def load_class(module: str, class_name: str, *, allow: Iterable[str] | None = None) -> type:
    """The class. allow: modules that may be imported ("my.store", or "my." for all below); None: any.

    Raises ConfigError (not allowed), PluginError (the module does not import, the class is not there).
    """
    if allow is not None and not any(module == a or (a.endswith(".") and module.startswith(a)) for a in allow):
        listed = ", ".join(allow) or "nothing"
        raise ConfigError(f"module {module!r} is not on the allow-list for dynamic backends ({listed})")
    try:
        loaded = importlib.import_module(module)
    except Exception as error:
        raise PluginError(f"dynamic backend: module {module!r} does not import: {error}") from error
    found = getattr(loaded, class_name, None)
    if not inspect.isclass(found):
        classes = [name for name, value in vars(loaded).items() if inspect.isclass(value)]
        near = nearest(class_name, classes)
        hint = f"; did you mean {near!r}?" if near else ""
        raise PluginError(f"dynamic backend: module {module!r} has no class {class_name!r}{hint}")
    return found


def dynamic_spec(allow: Iterable[str] | None = None) -> BackendSpec:
    """The spec of `dynamic`; with `allow` only these modules can be named (see load_class)."""
    allowed = None if allow is None else tuple(allow)

    def factory(options: DynamicOptions, ctx: OpenContext) -> object:
        return _open(load_class(options.module, options.class_name, allow=allowed), options, ctx)

    def capabilities(options: DynamicOptions) -> Capabilities:
        return _capabilities(load_class(options.module, options.class_name, allow=allowed), options)

    return BackendSpec(
        name="dynamic",
        description="a class given by module and class name, without packaging",
        options=DynamicOptions,
        factory=factory,
        capabilities=capabilities,
    )


def own_options(cls: type, options: DynamicOptions) -> Any:
    """The class's options: its struct where it declares one, else a dict."""
    declared = getattr(cls, "options", None)
    if inspect.isclass(declared) and issubclass(declared, msgspec.Struct):
        return parse_options(declared, options.options, where=f"options of {cls.__name__}", strict=False)
    return dict(options.options)


def _open(cls: type, options: DynamicOptions, ctx: OpenContext) -> object:
    wanted = _constructor_arity(cls)
    arguments = (own_options(cls, options), ctx)[:wanted]
    if wanted == 0 and options.options:
        raise OptionError(f"{cls.__name__} takes no options, got {', '.join(options.options)}")
    try:
        backend: object = cls(*arguments)
    except (ConfigError, OpenError):
        raise
    except Exception as error:
        raise OpenError(f"dynamic backend {cls.__name__} could not be opened: {error}") from error
    check_hooks(backend, dynamic=True)
    mark_hooks(backend)
    return backend


def _constructor_arity(cls: type) -> int:
    """How many of (options, ctx) the constructor takes by position."""
    constructor: Callable[..., Any] = cls
    count = 0
    for parameter in inspect.signature(constructor).parameters.values():
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            return 2
        if parameter.kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD):
            count += 1
    return min(count, 2)


def _capabilities(cls: type, options: DynamicOptions) -> Capabilities:
    declared = getattr(cls, "capabilities", None)
    if declared is None or isinstance(declared, Capabilities):
        return declared or Capabilities()
    if callable(declared) and not inspect.isfunction(declared):  # a classmethod or staticmethod
        declared = declared(own_options(cls, options))
        if isinstance(declared, Capabilities):
            return declared
    raise PluginError(f"{cls.__name__}.capabilities must be a Capabilities, got {declared!r}")


DYNAMIC = dynamic_spec()
"""The spec that discovery lists."""
