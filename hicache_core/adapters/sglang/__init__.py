"""SGLang's door: `HiCacheDynamicStorage`, for `--hicache-storage-backend dynamic`.

    --hicache-storage-backend-extra-config '{"backend_name": "hicache", "module_path": "hicache_core.adapters.sglang",
      "class_name": "HiCacheDynamicStorage", "interface_v1": 1, "hicache": {"url": "file:///var/cache/kv"}}'

SGLang is imported when the class is asked for, not with the package.
"""

from __future__ import annotations

from typing import Any

__all__ = ["HiCacheDynamicStorage"]


def __getattr__(name: str) -> Any:
    if name != "HiCacheDynamicStorage":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from hicache_core.adapters.sglang.storage import HiCacheDynamicStorage

    return HiCacheDynamicStorage
