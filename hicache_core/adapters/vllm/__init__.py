"""The door into vLLM: a secondary tier of its `TieringOffloadingSpec`. Imports vLLM.

--kv-transfer-config '{"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": {
  "spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": 10000000000, "secondary_tiers": [
    {"type": "hicache", "backend": "file", "options": {"root": "/var/cache/kv"}}]}}'
"""

from hicache_core.adapters.vllm.tier import HiCacheTier

__all__ = ["HiCacheTier"]
