"""Mooncake's Python module: imported when a store opens, with an error that says what to install."""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from hicache_core.errors import MissingDependencyError
from hicache_mooncake.options import APT, INSTALL

_environment = threading.RLock()


def load_sdk() -> Any:
    """The module `mooncake.store`. Raises MissingDependencyError with the line that mends it."""
    try:
        with environment({"MC_LOG_LEVEL": "WARNING"}):  # else a dozen lines on stderr for each store that is opened
            return importlib.import_module("mooncake.store")
    except ImportError as error:
        raise MissingDependencyError(missing_text(error)) from error


def missing_text(error: ImportError) -> str:
    """What an ImportError of the SDK means, and the mend."""
    text = str(error)
    if "libibverbs" in text or "libnl-" in text:
        return f"Mooncake's wheel needs the system library libibverbs.so.1, also without RDMA: {APT} ({text})"
    if "libcuda" in text:
        return (
            f"the installed Mooncake wheel is the one for CUDA, and no CUDA library is here ({text}): pip uninstall "
            "mooncake-transfer-engine && pip install 'hicache-mooncake[non-cuda]'"
        )
    if "cannot open shared object" in text:
        return f"a system library that Mooncake's wheel is linked to is missing: {text}"
    return f"Mooncake's client is not installed: {INSTALL} ({text})"


@contextmanager
def environment(wanted: Mapping[str, str]) -> Iterator[None]:
    """Variables that the SDK reads while it is set up. What the user has set stays; all is as before afterwards."""
    with _environment:
        ours = {name: value for name, value in wanted.items() if name not in os.environ}
        os.environ.update(ours)
        try:
            yield
        finally:
            for name in ours:
                os.environ.pop(name, None)
