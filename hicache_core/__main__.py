"""`python -m hicache_core` is `hicache`."""

from hicache_core.cli.app import main

main()
