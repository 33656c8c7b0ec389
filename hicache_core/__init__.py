"""hicache: a KV-cache hierarchy for LLM inference in which every shared store is a plugin."""

from hicache_core.types import PLUGIN_API

__version__ = "0.1.0"
__all__ = ["PLUGIN_API", "__version__"]
