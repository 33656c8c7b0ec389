"""The tree again, slow and obvious: a dict from prefix to the state of its last page.

For differential tests: the same operations under the same names, but a node is named by where it ends, a `TreeKey`
(empty data: the root), and by how many pages it has, since here every page stands for itself and nothing is ever
split. Every question is answered by looking at all pages. One thread, like the tree itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from hicache_core.errors import MisuseError
from hicache_core.keys import Tokens, chain_seed, page_hashes
from hicache_core.tree.key import TOKEN_BYTES, TreeKey, namespace_key, token_bytes
from hicache_core.tree.node import StorageState


class PageState(msgspec.Struct):
    """What is known of one page in its place."""

    device: int | None = None
    host: int | None = None
    lock_ref: int = 0
    host_lock_ref: int = 0
    hit_count: int = 0
    priority: int = 0
    created: float = 0
    last_access: float = 0
    write_pending: int | None = None
    load_pending: int | None = None
    storage_state: StorageState = StorageState.NONE


class NaiveMatch(msgspec.Struct, frozen=True):
    """`MatchResult`, with nodes named by their ends."""

    device_indices: list[int]
    host_hit_pages: int
    last_device_node: TreeKey
    last_host_node: TreeKey
    best_match_node: TreeKey


class NaiveTree:
    """The twin of `RadixTree`. `clock` is asked once per match or insert."""

    def __init__(self, page_size: int, *, clock: Callable[[], float]) -> None:
        self.page_size = page_size
        self.pages: dict[TreeKey, PageState] = {}
        """By the sequence that ends with the page."""
        self._size = page_size * TOKEN_BYTES
        self._now = clock
        self._copies: dict[int, list[TreeKey]] = {}

    def key(self, tokens: Tokens, extra_key: str | None = None, cache_salt: str | None = None) -> TreeKey:
        """As `RadixTree.key`."""
        return TreeKey(token_bytes(tokens, self.page_size), namespace_key(extra_key, cache_salt))

    # reading

    def prefixes(self, key: TreeKey) -> Iterator[TreeKey]:
        """Every whole-page prefix of `key`, shortest first, the empty one left out."""
        for end in range(self._size, len(key.data) + 1, self._size):
            yield TreeKey(key.data[:end], key.namespace)

    def span(self, end: TreeKey, pages: int) -> list[TreeKey]:
        """The last `pages` pages of `end`, top down."""
        return list(self.prefixes(end))[len(end.data) // self._size - pages :]

    def children(self, end: TreeKey) -> list[PageState]:
        """The pages that follow directly."""
        length = len(end.data) + self._size
        return [state for key, state in self.pages.items() if len(key.data) == length and self._below(key, end)]

    def device_leaf(self, end: TreeKey) -> bool:
        """On the device, nothing after it on the device, not locked."""
        page = self.pages[end]
        return page.device is not None and not page.lock_ref and all(c.device is None for c in self.children(end))

    def host_leaf(self, end: TreeKey) -> bool:
        """In host memory only, nothing after it, not locked."""
        page = self.pages[end]
        return page.device is None and not (page.lock_ref or page.host_lock_ref or self.children(end))

    @property
    def device_evictable_pages(self) -> int:
        """As `RadixTree.device_evictable_pages`."""
        return sum(page.device is not None and not page.lock_ref for page in self.pages.values())

    @property
    def device_protected_pages(self) -> int:
        """As `RadixTree.device_protected_pages`."""
        return sum(page.device is not None and page.lock_ref > 0 for page in self.pages.values())

    @property
    def host_pages(self) -> int:
        """As `RadixTree.host_pages`."""
        return sum(page.host is not None for page in self.pages.values())

    def hashes(self, end: TreeKey, pages: int) -> list[str]:
        """As `RadixTree.hashes`."""
        tokens = memoryview(end.data).cast("I").tolist()
        return page_hashes(tokens, self.page_size, prior=chain_seed(*end.namespace))[-pages:]

    def match_prefix(self, key: TreeKey, *, touch: bool = True) -> NaiveMatch:
        """As `RadixTree.match_prefix`."""
        root = TreeKey(b"", key.namespace)
        device: list[int] = []
        last_device, last_host, best, host_only = root, root, root, 0
        now = self._now()
        for end in self.prefixes(key):
            page = self.pages.get(end)
            if page is None:
                break
            best = end
            if page.device is None:
                host_only += 1
            else:
                device.append(page.device)
                last_device = end
            if page.host is not None:
                last_host = end
            if touch:
                page.last_access = now
        return NaiveMatch(device, host_only, last_device, last_host, best)

    # putting in

    def insert(
        self, key: TreeKey, device_slots: Sequence[int], *, priority: int = 0, count_hit: bool = True
    ) -> tuple[int, list[int], list[int]]:
        """As `RadixTree.insert`; returns (prefix_pages, device_indices, duplicates)."""
        now, prefix, indices, duplicates = self._now(), 0, [], []
        for end, slot in zip(self.prefixes(key), device_slots, strict=True):
            page = self._visit(end, now, priority)
            page.hit_count += count_hit
            if page.device is None:
                page.device = slot
            else:
                prefix += 1
                if page.device != slot:
                    duplicates.append(slot)
            indices.append(page.device)
        return prefix, indices, duplicates

    def insert_host(
        self,
        key: TreeKey,
        host_slots: Sequence[int],
        *,
        start_page: int = 0,
        priority: int = 0,
        storage_state: StorageState = StorageState.STORED,
    ) -> tuple[int, list[int], bool]:
        """As `RadixTree.insert_host`; returns (inserted_pages, duplicates, anchored)."""
        ends = list(self.prefixes(key))
        if any(end not in self.pages for end in ends[:start_page]):
            return 0, list(host_slots), False
        now, duplicates = self._now(), []
        for end, slot in zip(ends[start_page:], host_slots, strict=True):
            page = self._visit(end, now, priority)
            if page.host is None:
                page.host = slot
                if page.storage_state is not StorageState.QUEUED:
                    page.storage_state = storage_state
            else:
                duplicates.append(slot)
        return len(host_slots) - len(duplicates), duplicates, True

    def set_host(self, end: TreeKey, slots: Sequence[int]) -> list[int]:
        """As `RadixTree.set_host`, for the last pages of `end`."""
        pages = [self.pages[key] for key in self.span(end, len(slots))]
        if pages[0].host is not None:
            return list(slots)
        for page, slot in zip(pages, slots, strict=True):
            page.host = slot
        return []

    def set_device(self, end: TreeKey, slots: Sequence[int]) -> list[int]:
        """As `RadixTree.set_device`, for the last pages of `end`."""
        pages = [self.pages[key] for key in self.span(end, len(slots))]
        if pages[0].device is not None:
            return list(slots)
        for page, slot in zip(pages, slots, strict=True):
            page.device = slot
        return []

    # holding

    def inc_lock(self, end: TreeKey) -> None:
        """As `RadixTree.inc_lock`."""
        for key in self.prefixes(end):
            self.pages[key].lock_ref += 1

    def dec_lock(self, end: TreeKey) -> None:
        """As `RadixTree.dec_lock`."""
        for key in self.prefixes(end):
            self.pages[key].lock_ref -= 1

    def inc_host_lock(self, end: TreeKey, pages: int) -> list[TreeKey]:
        """As `RadixTree.inc_host_lock`; the receipt is the list of pages."""
        receipt = self.span(end, pages)
        for key in receipt:
            self.pages[key].host_lock_ref += 1
        return receipt

    def dec_host_lock(self, receipt: list[TreeKey]) -> None:
        """As `RadixTree.dec_host_lock`."""
        for key in receipt:
            self.pages[key].host_lock_ref -= 1

    def begin_write(self, op_id: int, span: list[TreeKey]) -> None:
        """As `RadixTree.begin_write`, for pages."""
        self._copies[op_id] = span
        for key in span:
            self.pages[key].write_pending = op_id
        self.inc_lock(span[-1])

    def begin_load(self, op_id: int, span: list[TreeKey]) -> None:
        """As `RadixTree.begin_load`, for pages."""
        self._copies[op_id] = span
        for key in span:
            self.pages[key].load_pending = op_id
        self.inc_lock(span[-1])

    def end_copy(self, op_id: int) -> list[TreeKey]:
        """As `RadixTree.end_write` and `end_load`; returns the pages, top down."""
        span = self._copies.pop(op_id)
        for key in span:
            self.pages[key].write_pending = self.pages[key].load_pending = None
        self.dec_lock(span[-1])
        return span

    # taking out

    def demote(self, end: TreeKey, pages: int) -> list[int]:
        """As `RadixTree.demote`."""
        self._require(self.device_leaf(end) and self.pages[end].host is not None, "demote", end)
        slots = []
        for key in self.span(end, pages):
            slots.append(self.pages[key].device)
            self.pages[key].device = None
        return [slot for slot in slots if slot is not None]

    def drop(self, end: TreeKey, pages: int) -> tuple[list[int], list[int]]:
        """As `RadixTree.drop`; returns (device slots, host slots)."""
        self._require(self.device_leaf(end) and self.pages[end].host is None, "drop", end)
        below = [key for key in self.pages if self._below(key, end) and key != end]
        gone = [self.pages.pop(key) for key in (*self.span(end, pages), *below)]
        self._require(not any(page.host_lock_ref for page in gone), "drop", end)
        device = [page.device for page in gone if page.device is not None]
        return device, [page.host for page in gone if page.host is not None]

    def drop_host(self, end: TreeKey, pages: int) -> list[int]:
        """As `RadixTree.drop_host`."""
        self._require(self.host_leaf(end), "drop_host", end)
        gone = [self.pages.pop(key) for key in self.span(end, pages)]
        return [page.host for page in gone if page.host is not None]

    def release_host(self, end: TreeKey, pages: int) -> list[int]:
        """As `RadixTree.release_host`."""
        slots = []
        for key in self.span(end, pages):
            page = self.pages[key]
            self._require(page.device is not None and page.host is not None, "release_host", key)
            slots.append(page.host)
            page.host = None
        return [slot for slot in slots if slot is not None]

    def reset(self) -> tuple[list[int], list[int]]:
        """As `RadixTree.reset`; returns (device slots, host slots)."""
        gone, self.pages = list(self.pages.values()), {}
        self._copies.clear()
        device = [page.device for page in gone if page.device is not None]
        return device, [page.host for page in gone if page.host is not None]

    def _visit(self, end: TreeKey, now: float, priority: int) -> PageState:
        """The page, made where there is none, marked as used."""
        page = self.pages.setdefault(end, PageState(created=now))
        page.last_access = now
        page.priority = max(page.priority, priority)
        return page

    def _below(self, key: TreeKey, end: TreeKey) -> bool:
        """`key` is `end` or follows it."""
        return key.namespace == end.namespace and key.data.startswith(end.data)

    def _require(self, holds: bool, action: str, end: TreeKey) -> None:
        if not holds:
            raise MisuseError(f"{action} is not allowed for the page that ends {end!r}")
