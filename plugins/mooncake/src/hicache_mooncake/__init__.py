"""hicache-mooncake: an L3 store in Mooncake's distributed memory pool."""
