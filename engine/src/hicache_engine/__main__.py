"""`hicache-engine`, and `python -m hicache_engine`."""

from __future__ import annotations

from .spinning import limit_spinning


def main() -> None:
    """Settle what must be settled before torch is imported, then run the command line."""
    limit_spinning()
    from .cli import main as run

    run()


if __name__ == "__main__":
    main()
