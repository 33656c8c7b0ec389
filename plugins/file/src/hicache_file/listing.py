"""The scan hook: pages in a stable order, a bounded number at a time."""

from __future__ import annotations

from hicache_file.directory import Directory
from hicache_file.names import legal_namespace
from hicache_file.walk import leaves, namespaces, pages

SCAN_ENTRIES = 1024
"""A call stops after the leaf directory that brings it to so many entries."""


def scan(
    directory: Directory, namespace: str | None, cursor: str | None
) -> tuple[list[tuple[str, int, float]], str | None]:
    """(key, length, time of writing or last use) of some pages, and a cursor (None: that was all).

    The cursor names the leaf directory to go on with, so what is added or removed meanwhile moves nothing: every page
    that stays is seen exactly once. An illegal or missing namespace has no pages.
    """
    if namespace is not None and not legal_namespace(namespace):
        return [], None
    start, _, start_leaf = (cursor or "").partition("/")
    found: list[tuple[str, int, float]] = []
    for name in namespaces(directory) if namespace is None else [namespace]:
        if name < start:
            continue
        for leaf in leaves(directory, name):
            if name == start and leaf < start_leaf:
                continue
            if len(found) >= SCAN_ENTRIES:
                return found, f"{name}/{leaf}"
            found += sorted((page.key, page.nbytes, page.mtime_ns / 1e9) for page in pages(directory, name, leaf))
    return found, None
