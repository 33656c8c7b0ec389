"""One request on its way through the hierarchy."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from hicache_core.controller.reasons import Reason
from hicache_core.errors import MisuseError
from hicache_core.keys import chain_seed, page_hashes
from hicache_core.tree.components import NO_SLOTS
from hicache_core.tree.key import TreeKey, token_bytes
from hicache_core.types import Slots

if TYPE_CHECKING:
    from hicache_core.controller.ledger import Account
    from hicache_core.controller.prefetch import PrefetchOperation
    from hicache_core.tree.locking import HostLock
    from hicache_core.tree.node import Node
    from hicache_core.tree.radix import RadixTree


class RequestState(Enum):
    """Where a request stands. WAITING may be entered again (`HiCache.abandon`)."""

    WAITING = "waiting"
    ADMITTED = "admitted"
    FINISHED = "finished"
    ABORTED = "aborted"


class CacheReport(msgspec.Struct):
    """Where the tokens of one admission came from. All counts are tokens.

    device + host + storage + recomputed = tokens of the request at its admission.
    """

    device: int = 0
    host: int = 0
    storage: int = 0
    recomputed: int = 0
    lost: dict[str, int] = {}
    """Of the recomputed: tokens that a tier was known to have, by the reason why they were not used."""
    ended: str = ""
    """Why the run of hits ended where it did; empty where every token that may come from the cache did."""

    @property
    def cached(self) -> int:
        """Tokens that need not be computed."""
        return self.device + self.host + self.storage


class Request:
    """Tokens, the device pages they occupy, and what the cache knows of both. Made by `HiCache.new_request`.

    Engine thread only. The engine appends pages for new tokens (`add_slots`) and tokens (`extend`); everything
    else is the cache's to change.
    """

    __slots__ = (
        "_buffer",
        "_hashes",
        "_key",
        "_length",
        "account",
        "admitted_tokens",
        "cache_salt",
        "counted_pages",
        "ended",
        "extra_key",
        "host_lock",
        "inserted_pages",
        "last_node",
        "load_failed",
        "page_size",
        "prefetch",
        "prefix_pages",
        "priority",
        "report",
        "reuse_limit",
        "rid",
        "slots",
        "state",
        "storage_pages",
    )

    def __init__(
        self,
        rid: str,
        tokens: npt.ArrayLike,
        *,
        page_size: int,
        account: Account,
        extra_key: str | None = None,
        cache_salt: str | None = None,
        priority: int = 0,
        reuse_limit: int | None = None,
    ) -> None:
        self.rid = rid
        self.page_size = page_size
        self.extra_key, self.cache_salt = extra_key, cache_salt
        self.priority = priority
        self.reuse_limit = reuse_limit
        """At most that many leading tokens may come from the cache; None: all."""
        self._buffer: npt.NDArray[np.uint32] = np.empty(0, np.uint32)
        self._length = 0
        self._key: TreeKey | None = None
        self._hashes: list[str] = []
        self.state = RequestState.WAITING
        self.slots: Slots = NO_SLOTS
        """Device pages of the request in order, int64[n]: first `inserted_pages` of the tree, then its own."""
        self.prefix_pages = 0
        """Leading pages whose KV came from the cache at admission."""
        self.inserted_pages = 0
        """Leading pages that belong to the tree; locked as long as the request is admitted."""
        self.counted_pages = 0
        """Leading pages whose nodes have this request among their hits."""
        self.admitted_tokens = 0
        """Tokens at admission, as booked."""
        self.last_node: Node | None = None
        """The node whose path the request has locked."""
        self.prefetch: PrefetchOperation | None = None
        self.storage_pages: range = range(0)
        """Pages that this request's own prefetch brought into L2."""
        self.host_lock: HostLock | None = None
        """Keeps what the prefetch brought in L2 until the request is admitted."""
        self.ended: Reason | None = None
        """Why L3 gave no more."""
        self.load_failed = False
        """The copy into L1 that this request depends on failed: `HiCache.abandon` it."""
        self.account = account
        self.report = CacheReport()
        self.extend(tokens)

    def __repr__(self) -> str:
        return f"<Request {self.rid!r}: {len(self)} tokens, {len(self.slots)} pages, {self.state.value}>"

    def __len__(self) -> int:
        return self._length

    @property
    def tokens(self) -> npt.NDArray[np.uint32]:
        """Token ids, uint32[n]; a view that is valid until the next `extend`."""
        return self._buffer[: self._length]

    def extend(self, ids: npt.ArrayLike | Any) -> None:
        """Append token ids. Raises ValueError for an id outside 0 … 2**32 - 1, TypeError for what is no integer."""
        new = np.frombuffer(token_bytes(ids, 1), np.uint32)  # type: ignore[arg-type]
        end = self._length + len(new)
        if end > len(self._buffer):
            grown = np.empty(max(end, 2 * self._length), np.uint32)
            grown[: self._length] = self.tokens
            self._buffer = grown
        self._buffer[self._length : end] = new
        self._length = end
        self._key = None

    def add_slots(self, slots: Slots) -> None:
        """Append device pages that `HiCache.alloc_pages` gave; the request owns them from now on."""
        if self.state is not RequestState.ADMITTED:
            raise MisuseError(f"{self!r} cannot take pages before it is admitted or after it ended")
        self.slots = np.concatenate((self.slots, slots))

    @property
    def pages(self) -> int:
        """Whole pages of tokens."""
        return self._length // self.page_size

    @property
    def reusable_pages(self) -> int:
        """Whole pages that may come from the cache."""
        if self.reuse_limit is None:
            return self.pages
        return min(self._length, max(self.reuse_limit, 0)) // self.page_size

    def key(self, pages: int | None = None) -> TreeKey:
        """The first `pages` pages (default: all whole pages) as the tree wants them."""
        if self._key is None:
            whole = self._buffer[: self.pages * self.page_size].tobytes()
            self._key = TreeKey(whole, (self.extra_key, self.cache_salt or None))
        if pages is None or pages == self.pages:
            return self._key
        return TreeKey(self._key.data[: pages * self.page_size * 4], self._key.namespace)

    def hashes(self, pages: int) -> list[str]:
        """Page hashes of the first `pages` pages, computed once."""
        known = len(self._hashes)
        if pages > known:
            prior = bytes.fromhex(self._hashes[-1]) if known else chain_seed(self.extra_key, self.cache_salt)
            new = self._buffer[known * self.page_size : pages * self.page_size]
            self._hashes += page_hashes(new, self.page_size, prior=prior)
        return self._hashes[:pages]

    def known_hashes(self, start: int, stop: int) -> list[str] | None:
        """Page hashes of pages start … stop - 1, None where they have not been computed."""
        return self._hashes[start:stop] if stop <= len(self._hashes) else None

    def know_hashes(self, hashes: list[str]) -> None:
        """The tree knows the hashes of a prefix already: spare their computation."""
        if len(hashes) > len(self._hashes):
            self._hashes = list(hashes)

    def hold(self, tree: RadixTree, node: Node) -> None:
        """Keep the path to `node` in L2 until `let_go`."""
        self.let_go(tree)
        self.host_lock = tree.inc_host_lock(node)

    def let_go(self, tree: RadixTree) -> None:
        """Give the lock of `hold` back."""
        if self.host_lock is not None:
            tree.dec_host_lock(self.host_lock)
            self.host_lock = None
