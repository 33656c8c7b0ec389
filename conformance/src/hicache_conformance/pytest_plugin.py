"""What pytest loads by itself (entry point `pytest11`): markers, so that --strict-markers works, and the seed option.

It imports nothing of the suite: it runs at every start of pytest, whether the suite is used or not.
"""

from __future__ import annotations

import sys

import pytest

_MARKERS = (
    "hicache_conformance(level): a case of the hicache conformance suite",
    "hicache_core: conformance level core",
    "hicache_zero_copy: conformance level zero_copy",
    "hicache_hybrid: conformance level hybrid",
    "hicache_durable: conformance level durable",
    "hicache_shared: conformance level shared",
    "hicache_hostile: conformance level hostile",
)


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers."""
    for marker in _MARKERS:
        config.addinivalue_line("markers", marker)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --conformance-seed."""
    parser.getgroup("hicache").addoption(
        "--conformance-seed",
        type=int,
        default=0,
        help="seed of every random choice in the hicache conformance suite (default 0: the same run each time)",
    )


def pytest_sessionfinish() -> None:
    """Stop what kits kept running for their throwaway stores, where the suite was used."""
    backdoor = sys.modules.get("hicache_conformance.backdoor")
    if backdoor is not None:
        backdoor.close_kits()
