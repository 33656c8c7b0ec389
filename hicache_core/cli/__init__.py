"""The `hicache` command: one module per command."""
