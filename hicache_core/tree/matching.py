"""Finding the longest prefix."""

from __future__ import annotations

from hicache_core.keys import Tokens
from hicache_core.tree.base import TreeState
from hicache_core.tree.components import NO_SLOTS, joined
from hicache_core.tree.key import TreeKey, token_bytes
from hicache_core.tree.node import Node, Root
from hicache_core.tree.results import MatchResult
from hicache_core.types import Slots


class Matching(TreeState):
    """match_prefix and lookup."""

    def match_prefix(
        self,
        key: TreeKey | Tokens,
        *,
        extra_key: str | None = None,
        cache_salt: str | None = None,
        touch: bool = True,
    ) -> MatchResult:
        """The longest prefix of `key` that is on the device or in host memory.

        key: a TreeKey, or tokens (then `extra_key` and `cache_salt` name the namespace). touch: count it as a use.
        The node in which the match ends is split there, so that the nodes of the answer hold the match exactly;
        `lookup` answers without changing anything.
        """
        # The hottest path of the whole cache: everything is local, and nothing is called that need not be.
        if type(key) is TreeKey:
            data, namespace = key.data, key.namespace
        else:
            data, namespace = token_bytes(key, self.page_size), (extra_key, cache_salt or None)  # type: ignore[arg-type]
        node: Node | None = self._roots.get(namespace)
        if node is None:
            root = Root(next(self._ids), namespace, 0)
            return MatchResult(NO_SLOTS, 0, root, root, root, self.page_size)
        now = self._now() if touch else 0
        size, end, offset = self._page_bytes, len(data), 0
        parts: list[Slots] = []
        host_pages = 0
        last_device = last_host = node
        while offset < end:
            try:
                child = node.children[data[offset : offset + size]]
            except KeyError:
                break
            edge = child.key
            if not data.startswith(edge, offset):
                child = self._split(child, self._common_pages(data, offset, edge))
                edge = child.key
            node = child
            offset += len(edge)
            device = node.device
            if device is not None:
                parts.append(device)
                last_device = node
            else:
                host_pages += node.pages
            if node.host is not None:
                last_host = node
            if touch:
                node.last_access = now
        if touch and self._device_queue.eager:
            self._device_queue.touched(last_device)
            self._host_queue.touched(node)
        slots = joined(parts)
        return MatchResult(slots, host_pages, last_device, last_host, node, self.page_size)

    def lookup(
        self, key: TreeKey | Tokens, *, extra_key: str | None = None, cache_salt: str | None = None
    ) -> list[tuple[Node, int]]:
        """The nodes along `key` and how many of each one's pages it covers, top down; changes nothing."""
        resolved = self._resolve(key, extra_key, cache_salt)
        data, size, offset = resolved.data, self._page_bytes, 0
        node: Node | None = self._roots.get(resolved.namespace)
        found: list[tuple[Node, int]] = []
        while node is not None and offset < len(data):
            node = node.children.get(data[offset : offset + size])
            if node is None:
                break
            pages = self._common_pages(data, offset, node.key)
            found.append((node, pages))
            if pages < node.pages:
                break
            offset += pages * size
        return found
