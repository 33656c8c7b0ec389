"""Why a prefix would or would not be served from a store, page by page, asked from outside an engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from hicache_core.errors import NotSupportedError
from hicache_core.keys import Tokens, chain_seed, page_hashes, parse_key
from hicache_core.namespace import Identity
from hicache_core.offline.raw import RawStore, StoredObject
from hicache_core.seal import inspect
from hicache_core.types import Outcome


class PageReason(msgspec.Struct, frozen=True):
    """What the store has for one page of a prompt."""

    page: int
    key: str
    state: str
    """stored, missing, corrupt, foreign, unreadable or partial (fewer tokens than a page: never stored)."""
    served: bool
    """Whether a request could use it: it is intact and so is every page before it."""
    reason: str


def explain_prefix(
    store: RawStore,
    identity: Identity,
    tokens: Tokens,
    *,
    extra_key: str | None = None,
    cache_salt: str | None = None,
) -> list[PageReason]:
    """One entry per page of the prompt, in order.

    A page that is missing under this identity is looked for under others: a stored twin tells that the model,
    weights, dtype, layout, geometry or tenant differs, and where.
    """
    hashes = page_hashes(tokens, identity.page_size, prior=chain_seed(extra_key, cache_salt))
    whole = len(tokens) // identity.page_size
    keys = identity.key_schema().physical(hashes)
    listed = _listed(store)
    served = True
    rows = []
    for page, (page_hash, key) in enumerate(zip(hashes, keys, strict=True)):
        if page >= whole:
            state, reason = "partial", f"fewer than {identity.page_size} tokens; only whole pages are stored"
        else:
            state, reason = _judge(store, key, page_hash, listed)
        served = served and state == "stored"
        if state == "stored" and not served:
            reason = "intact, but a page before it is not: a prefix has no gaps"
        rows.append(PageReason(page, key, state, served, reason))
    return rows


def _listed(store: RawStore) -> Mapping[str, Sequence[StoredObject]] | None:
    """Every stored object by page hash, or None where the store cannot list."""
    by_hash: dict[str, list[StoredObject]] = {}
    try:
        for stored in store.scan(None):
            parsed = parse_key(stored.key)
            if parsed is not None:
                by_hash.setdefault(parsed.page_hash, []).append(stored)
    except NotSupportedError:
        return None
    return by_hash


def _judge(
    store: RawStore, key: str, page_hash: str, listed: Mapping[str, Sequence[StoredObject]] | None
) -> tuple[str, str]:
    if listed is None:
        here = store.exists(key)
        return ("stored", "the store cannot list, so its bytes were not verified") if here else ("missing", "")
    twins = listed.get(page_hash, ())
    for stored in twins:
        if stored.key == key:
            return _verified(store, stored)
    if twins:
        places = ", ".join(sorted({_place(twin.key, key) for twin in twins}))
        return "missing", f"these tokens are stored under {places}"
    return "missing", "never stored, or removed"


def _verified(store: RawStore, stored: StoredObject) -> tuple[str, str]:
    outcome, data = store.read(stored)
    if outcome is not Outcome.HIT:
        return "unreadable", f"the store answered {outcome.value}"
    report = inspect(stored.key, data)
    if report.fields is not None and not report.certain:
        return "unreadable", report.reason  # it has a seal, of a kind that cannot be judged from here
    return ("stored" if report.outcome is Outcome.HIT else report.outcome.value), report.reason


def _place(twin: str, key: str) -> str:
    """In what a twin's key differs."""
    space, _, rest = twin.partition("/")
    if space != key.partition("/")[0]:
        return f"namespace {space} (another model, weights, dtype, layout, geometry, page size or tenant)"
    return f"{rest.partition('.')[2]} (another pool, layer or head range)"
