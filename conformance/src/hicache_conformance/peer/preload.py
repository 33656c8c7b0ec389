"""The backend `sglang` for processes that fork: whoever imports this has SGLang loaded, which takes seconds, once."""

from __future__ import annotations

from hicache_core.adapters.sglang_backend.loading import storage_module
from hicache_core.adapters.sglang_backend.plugin import SPEC

__all__ = ["SPEC"]

storage_module()
