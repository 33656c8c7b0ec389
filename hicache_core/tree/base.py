"""What all parts of the tree share: roots, counters, splitting, leaf sets."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

from hicache_core.errors import ConfigError, MisuseError
from hicache_core.keys import Tokens
from hicache_core.tree.eviction import EvictionPolicy, find_policy
from hicache_core.tree.key import TOKEN_BYTES, TreeKey, namespace_key, token_bytes
from hicache_core.tree.marks import Marks
from hicache_core.tree.node import NamespaceKey, Node, Root
from hicache_core.tree.victims import VictimQueue


class TreeState:
    """The nodes and what is counted about them. One thread owns it; there are no locks inside."""

    def __init__(
        self,
        page_size: int,
        *,
        eviction: str | EvictionPolicy = "lru",
        clock: Callable[[], float] | None = None,
    ) -> None:
        if page_size < 1 or page_size & (page_size - 1):
            raise ConfigError(f"page_size must be a power of two, not {page_size}")
        self.page_size = page_size
        self.policy = find_policy(eviction) if isinstance(eviction, str) else eviction
        self._page_bytes = page_size * TOKEN_BYTES
        # A counter orders uses as well as a clock does, without a system call per match.
        self._now: Callable[[], float] = clock or itertools.count(1).__next__
        self._ids = itertools.count(1)
        self._roots: dict[NamespaceKey, Root] = {}
        self._node_count = 0
        self._device_evictable = 0
        self._device_protected = 0
        self._host_pages = 0
        self._device_queue = VictimQueue(self.policy)
        self._host_queue = VictimQueue(self.policy)
        self._writes = Marks("write")
        self._loads = Marks("load")

    # sizes

    @property
    def node_count(self) -> int:
        """Nodes, roots not counted."""
        return self._node_count

    @property
    def device_evictable_pages(self) -> int:
        """Pages on the device that no lock covers."""
        return self._device_evictable

    @property
    def device_protected_pages(self) -> int:
        """Pages on the device that a lock covers."""
        return self._device_protected

    @property
    def device_pages(self) -> int:
        """Pages on the device."""
        return self._device_evictable + self._device_protected

    @property
    def host_pages(self) -> int:
        """Pages with a host copy, those on the device too included."""
        return self._host_pages

    # reading

    def key(self, tokens: Tokens, extra_key: str | None = None, cache_salt: str | None = None) -> TreeKey:
        """`tokens` cut to whole pages, ready for the other methods; see `token_bytes` for the errors."""
        return TreeKey(token_bytes(tokens, self.page_size), namespace_key(extra_key, cache_salt))

    def walk(self) -> Iterator[Node]:
        """Every node, parents before children, roots left out."""
        stack: list[Node] = [child for root in self._roots.values() for child in root.children.values()]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def path(self, node: Node) -> list[Node]:
        """The nodes from below the root down to `node`, itself included."""
        nodes = []
        while node.parent is not None:
            nodes.append(node)
            node = node.parent
        nodes.reverse()
        return nodes

    def namespace_of(self, node: Node) -> NamespaceKey:
        """The (extra_key, cache_salt) that `node` stands under."""
        while node.parent is not None:
            node = node.parent
        if not isinstance(node, Root):
            raise MisuseError(f"{node!r} has been removed from the tree")
        return node.namespace

    def key_of(self, node: Node) -> TreeKey:
        """The whole sequence that ends with `node`."""
        return TreeKey(b"".join(n.key for n in self.path(node)), self.namespace_of(node))

    # changing

    def _resolve(self, key: TreeKey | Tokens, extra_key: str | None, cache_salt: str | None) -> TreeKey:
        """A key, made where the caller has only tokens."""
        if isinstance(key, TreeKey):
            return key
        return TreeKey(token_bytes(key, self.page_size), namespace_key(extra_key, cache_salt))

    def _root(self, namespace: NamespaceKey) -> Root:
        """The root of a namespace, made where there is none."""
        root = self._roots.get(namespace)
        if root is None:
            root = self._roots[namespace] = Root(next(self._ids), namespace, self._now())
        return root

    def _live(self, node: Node) -> Node:
        """`node`, checked to be in the tree; an empty root that was pruned is put back."""
        if isinstance(node, Root):
            return self._roots.setdefault(node.namespace, node)
        if node.parent is None:
            raise MisuseError(f"{node!r} has been removed from the tree")
        return node

    def _common_pages(self, data: bytes, offset: int, edge: bytes) -> int:
        """Leading pages that `data` from `offset` shares with `edge`; at least one is known to be."""
        size = self._page_bytes
        low, high = 1, min(len(edge), len(data) - offset) // size
        while low < high:
            middle = (low + high + 1) // 2
            if data.startswith(edge[: middle * size], offset):
                low = middle
            else:
                high = middle - 1
        return low

    def _split(self, node: Node, pages: int) -> Node:
        """Cut `node` after its first `pages` pages; returns the new upper half.

        `node` stays itself as the lower half, so locks taken on it, and whoever holds it, keep their meaning.
        """
        parent = node.parent
        assert parent is not None
        size = self._page_bytes
        upper = Node(next(self._ids), node.key[: pages * size], pages, parent, node.created)
        parent.children[upper.key[:size]] = upper
        node.key, node.pages, node.parent = node.key[pages * size :], node.pages - pages, upper
        upper.children[node.key[:size]] = node
        node.divide(upper, pages)
        if node.device is not None:
            upper.device_children = 1
        if node.hashes is not None:
            upper.hashes, node.hashes = node.hashes[:pages], node.hashes[pages:]
        upper.hit_count, upper.priority, upper.last_access = node.hit_count, node.priority, node.last_access
        upper.storage_state = node.storage_state
        if node.host_locks:
            upper.host_locks = list(node.host_locks)
            for receipt in node.host_locks:
                receipt.nodes.insert(receipt.nodes.index(node), upper)
        self._writes.split(node.write_pending, node, upper)
        self._loads.split(node.load_pending, node, upper)
        upper.write_pending, upper.load_pending = node.write_pending, node.load_pending
        self._node_count += 1
        return upper

    def _remove(self, node: Node) -> None:
        """Take a node out that has no children and is not on the device."""
        parent = node.parent
        assert parent is not None
        assert not node.children
        assert node.device is None
        del parent.children[node.key[: self._page_bytes]]
        node.parent = None
        self._node_count -= 1
        self._device_queue.forget(node)
        self._host_queue.forget(node)
        self._refresh(parent)

    def _refresh(self, node: Node) -> None:
        """Bring both leaf sets up to date for `node`; an idle root is pruned."""
        if node.is_root:
            self._prune(node)
            return
        if is_device_leaf(node):
            self._device_queue.add(node)
        else:
            self._device_queue.discard(node)
        if is_host_leaf(node):
            self._host_queue.add(node)
        else:
            self._host_queue.discard(node)

    def _prune(self, root: Node) -> None:
        """Forget a root that nothing hangs on, lest every salt ever seen keeps one."""
        assert isinstance(root, Root)
        if not (root.children or root.lock_ref or root.host_lock_ref) and self._roots.get(root.namespace) is root:
            del self._roots[root.namespace]


def is_device_leaf(node: Node) -> bool:
    """On the device, no child on the device, not locked."""
    return node.device is not None and not node.device_children and not node.lock_ref


def is_host_leaf(node: Node) -> bool:
    """In host memory only, no children at all, no lock of either kind."""
    return node.device is None and not node.children and not node.lock_ref and not node.host_lock_ref
