"""SGLang's door: `HiCacheDynamicStorage`, for `--hicache-storage-backend dynamic`.

    --hicache-storage-backend-extra-config '{"backend_name": "hicache", "module_path": "hicache_core.adapters.sglang",
      "class_name": "HiCacheDynamicStorage", "interface_v1": 1, "hicache": {"url": "file:///var/cache/kv"}}'

Importing this package imports SGLang.
"""

from __future__ import annotations

from hicache_core.adapters.sglang.storage import HiCacheDynamicStorage

__all__ = ["HiCacheDynamicStorage"]
