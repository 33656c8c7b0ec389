"""Kits of the backends that come with hicache; another distribution registers its own in `hicache.backdoors`."""

from __future__ import annotations

from hicache_conformance.backdoor import StoreKit

BUILT_IN: dict[str, StoreKit] = {}
