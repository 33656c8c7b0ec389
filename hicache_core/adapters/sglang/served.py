"""What SGLang was started with, as far as a version lets a backend see it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_ASKED = (
    "model_path",
    "revision",
    "quantization",
    "quantization_param_path",
    "json_model_override_args",
    "kv_cache_dtype",
)
_PLACES = (
    ("sglang.srt.runtime_context", "get_server_args"),
    ("sglang.srt.server_args", "get_global_server_args"),
)
"""Where the arguments are, newest version first; the older place raises in newer versions."""


def served_arguments() -> dict[str, Any]:
    """Some of the server's arguments by name; empty outside a server."""
    for module, name in _PLACES:
        try:
            arguments = getattr(import_module(module), name)()
        except (ImportError, AttributeError, RuntimeError, ValueError, AssertionError):
            continue
        if arguments is not None:
            return {key: getattr(arguments, key, None) for key in _ASKED}
    return {}
