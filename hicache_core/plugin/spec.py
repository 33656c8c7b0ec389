"""The hooks of a storage backend. The docstrings are the contract; hicache-conformance proves each of them.

A backend is an object with methods of these names, decorated with `hookimpl` (for the `dynamic` backend
undecorated methods count). An implementation names only the arguments that it wants: PLUGIN_API grows by new
optional arguments and hooks. `batch_exists`, `batch_get`, `batch_set` and `close` are required, everything else
has a default or is answered "not supported".

Rules for every hook of the data plane
--------------------------------------
* Keys are opaque ASCII `[0-9a-z._/-]{1,200}` with no segment empty, `.` or `..`; "a" and "a/b" are both legal.
  The part before the first `/` is the namespace. A backend adds nothing to a key, lets none escape its root,
  and answers REJECTED or MISS to a key that breaks these rules, touching nothing.
* Results have one entry per key, in order. Duplicate keys, empty batches and any batch size are legal.
* Calls may come from several threads at once.
* Buffers are byte memoryviews. Memory lent to a call stays untouched by the core until the call has returned,
  also when the core stopped waiting; the backend must not touch it after returning (but see register_region).
* Anything that goes wrong with one page is an `Outcome` of that page. An exception makes the whole call
  UNAVAILABLE, its cause kept. A wrong type, count or outcome is a violation: all keys of the call UNAVAILABLE.
* `None` means "not handled" where there is a default and is a violation elsewhere.
* `ctx.deadline` is on `time.monotonic()`: pass it on to a client that can time out by itself.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import pluggy

if TYPE_CHECKING:
    from hicache_core.types import (
        BackendSpec,
        Buffer,
        HostPoolView,
        IoContext,
        Outcome,
        Page,
        PoolName,
        PoolTransfer,
        PoolTransferResult,
        Slots,
    )

PROJECT = "hicache"
ENTRY_POINT_GROUP = "hicache.backends"
TRANSFORM_GROUP = "hicache.transforms"
OBSERVER_GROUP = "hicache.observers"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)

PAGEWISE = f"{PROJECT}_pagewise"
"""Attribute that `pagewise` sets on a function."""

_Hook = TypeVar("_Hook", bound=Callable[..., Any])


def pagewise(hook: _Hook) -> _Hook:
    """Mark batch_get, batch_set or one of their _v1: it tells the session of each page as it comes to it.

    A get calls `ctx.verify_page(i)` once page i is in place, a set `ctx.seal_page(i)` before it reads page i, so that
    the page is hashed while it lies in the processor's cache. A page that was stored unsealed is a violation. The
    mark belongs to the function: a wrapper or a subclass that touches pages after the marked hook has its own
    function without it. Where a v1 hook is there too, both are marked or neither counts.
    """
    setattr(hook, PAGEWISE, weakref.ref(hook))  # itself: functools.wraps copies a function's attributes
    return hook


def is_pagewise(hook: Callable[..., Any]) -> bool:
    """Whether this very function (or the one of this method) is marked `pagewise`, and not one that it wraps."""
    function = getattr(hook, "__func__", hook)
    mark = getattr(function, PAGEWISE, None)
    return mark is not None and mark() is function


REQUIRED_HOOKS = ("batch_exists", "batch_get", "batch_set", "close")


class DiscoverySpec:
    """What the module behind an entry point of group `hicache.backends` implements."""

    @hookspec(firstresult=True)
    def hicache_backend(self) -> BackendSpec | None:
        """The backend's description. The module imports neither torch nor the vendor's SDK."""


class DataPlaneSpec:
    """What an opened backend implements."""

    @hookspec(firstresult=True)
    def batch_exists(self, keys: Sequence[str], ctx: IoContext) -> int:  # type: ignore[empty-body]
        """Length of the run of existing keys from the start: 0 … len(keys).

        A hint that vouches for no bytes. May raise: the core then answers 0 and records unavailable, not a miss.
        """

    @hookspec(firstresult=True)
    def batch_contains(self, keys: Sequence[str], ctx: IoContext) -> list[bool] | None:
        """One bool per key, for pools with gaps. Optional: the default walks by runs of batch_exists."""

    @hookspec(firstresult=True)
    def batch_get(self, keys: Sequence[str], pages: Sequence[Page], ctx: IoContext) -> list[Outcome]:  # type: ignore[empty-body]
        """Fill each page: a sequence of writable buffers, the seal first, then the page's regions.

        HIT: every byte was written and the stored length equals the sum of the buffers. Any other stored length
        is CORRUPT (only with capability `variable_length` may the buffers be larger; the true length, seal
        included, then goes to `ctx.lengths[i]`). MISS: not stored. On anything but HIT the destination is
        undefined and never published (capability `clean_miss`: unchanged on MISS). Legal outcomes: HIT, MISS,
        CORRUPT, REJECTED, UNAVAILABLE, TIMEOUT, CANCELLED.
        """

    @hookspec(firstresult=True)
    def batch_set(self, keys: Sequence[str], pages: Sequence[Page], ctx: IoContext) -> list[Outcome]:  # type: ignore[empty-body]
        """Store each page: a sequence of readable buffers, the seal first; the object is their concatenation.

        Publication is atomic: the key is visible with all its bytes or not at all, also after kill -9 or on a
        full disk, and a failed set leaves no trace. A key that is there keeps its bytes (or gets equal ones):
        EXISTS, or STORED from a store that cannot tell (no capability `reports_exists`). With `ctx.replace`
        (capability `replace`) it is replaced, atomically, and the answer is STORED. Legal outcomes: STORED,
        EXISTS, CORRUPT, REJECTED (no room, too large), UNAVAILABLE, TIMEOUT, CANCELLED.
        """

    @hookspec(firstresult=True)
    def batch_get_v1(self, keys: Sequence[str], host_indices: Slots, ctx: IoContext) -> list[Outcome] | None:
        """batch_get straight into the registered KV host pool.

        host_indices: int64[len(keys)], one page slot per key, in any order. Fill `ctx.seals[i]` (when seals are
        given), then the regions `view.regions(slot)`. Optional: the default calls batch_get with `ctx.pages`.
        """

    @hookspec(firstresult=True)
    def batch_set_v1(self, keys: Sequence[str], host_indices: Slots, ctx: IoContext) -> list[Outcome] | None:
        """batch_set straight from the registered KV host pool; see batch_get_v1."""

    @hookspec(firstresult=True)
    def batch_exists_v2(
        self, keys: Sequence[str], pool_transfers: Sequence[PoolTransfer], ctx: IoContext
    ) -> PoolTransferResult | None:
        """Usable prefix over the KV keys and all further pools with their hit policies.

        keys: the KV pool's physical keys, one per page. Every restorable prefix length is told (see
        PoolTransferResult). One transfer per pool name. Optional: the default asks batch_exists and
        batch_contains.
        """

    @hookspec(firstresult=True)
    def batch_get_v2(self, transfers: Sequence[PoolTransfer], ctx: IoContext) -> dict[PoolName, list[Outcome]] | None:
        """batch_get_v1 for several pools at once; one list per transfer, by pool name. Optional."""

    @hookspec(firstresult=True)
    def batch_set_v2(self, transfers: Sequence[PoolTransfer], ctx: IoContext) -> dict[PoolName, list[Outcome]] | None:
        """batch_set_v1 for several pools at once; one list per transfer, by pool name. Optional."""

    @hookspec
    def register_region(self, buffer: Buffer) -> None:
        """Memory that stays lent until unregister_region: seals and staging. For zero-copy stores. Optional."""

    @hookspec
    def unregister_region(self, buffer: Buffer) -> None:
        """The region is no longer lent. Optional; called once for each register_region, at the latest in close."""

    @hookspec
    def register_host_pool(self, view: HostPoolView) -> None:
        """A host pool that later v1 and v2 calls name by `view.name`. Raise to refuse it. Optional."""

    @hookspec
    def unregister_host_pool(self, view: HostPoolView) -> None:
        """The pool is no longer lent. Optional."""

    @hookspec(firstresult=True)
    def allocate_host_memory(self, nbytes: int, alignment: int) -> Buffer | None:
        """Memory for a host pool from the store's own allocator. Optional: stores that must own the pool."""

    @hookspec(firstresult=True)
    def delete(self, keys: Sequence[str], ctx: IoContext) -> list[Outcome] | None:
        """Remove keys: HIT (was there, is gone) or MISS. Optional (capability `delete`)."""

    @hookspec(firstresult=True)
    def clear(self, namespace: str) -> int | None:
        """Remove every key of this namespace and nothing else; how many there were. Optional."""

    @hookspec(firstresult=True)
    def scan(
        self, namespace: str | None, cursor: str | None
    ) -> tuple[list[tuple[str, int, float]], str | None] | None:
        """A page of (key, bytes stored, mtime in seconds since the epoch) and the cursor of the next, or None.

        namespace None: every namespace of the store. Optional (capability `scan`).
        """

    @hookspec(firstresult=True)
    def stats(self) -> Any | None:
        """A msgspec.Struct or dict of counters; bytes moved, not bytes asked for. Optional."""

    @hookspec(firstresult=True)
    def close(self) -> None:
        """Release everything: descriptors, threads, registered memory. Idempotent."""
