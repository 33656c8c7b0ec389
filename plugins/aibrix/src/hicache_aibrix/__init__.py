"""Storage backend `aibrix`: pages in AIBrix KVCache, through its SHFS and ROCKSDB connectors."""
