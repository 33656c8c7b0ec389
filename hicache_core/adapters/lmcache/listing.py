"""What the store holds, as LMCache lists it: pages of keys, with a cursor that is a place in the store's own scan."""

from __future__ import annotations

from hicache_core.adapters.lmcache.contexts import Context, Contexts
from hicache_core.errors import NotSupportedError
from hicache_core.keys import parse_key
from hicache_core.storage import StorageSession

Entry = tuple[str, Context, int]
"""Chunk hash in hex, its context, bytes without the seal."""


def list_page(
    session: StorageSession, contexts: Contexts, model: str | None, page_size: int, cursor: str | None
) -> tuple[list[Entry], str | None]:
    """Up to page_size entries and the next cursor. See HiCacheL2Adapter.list_l2_keys for what is raised."""
    if page_size < 1:
        raise ValueError(f"page_size must be at least 1, got {page_size}")
    skip, place = _parse(cursor)
    entries: list[Entry] = []
    while True:
        try:
            found, following = session.scan(place)
        except NotSupportedError as error:
            raise NotImplementedError(str(error)) from error
        for position, (key, nbytes, _) in enumerate(found[skip:], skip):
            if len(entries) == page_size:
                return entries, f"{position}|{place or ''}"
            entry = _entry(session, contexts, key, nbytes)
            if entry is not None and model in (None, entry[1].model):
                entries.append(entry)
        if following is None:
            return entries, None
        skip, place = 0, following
        if len(entries) == page_size:
            return entries, f"0|{place}"


def _parse(cursor: str | None) -> tuple[int, str | None]:
    if not cursor:
        return 0, None
    skip, bar, place = cursor.partition("|")
    if not bar or not skip.isdecimal():
        raise ValueError(f"{cursor!r} is no cursor of this adapter")
    return int(skip), place or None


def _entry(session: StorageSession, contexts: Contexts, key: str, nbytes: int) -> Entry | None:
    parsed = parse_key(key)
    context = contexts.of_pool(parsed.pool) if parsed is not None else None
    if parsed is None or context is None:
        return None
    return parsed.page_hash, context, nbytes - session.identity.seal_stride
