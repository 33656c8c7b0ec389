"""The order in which leaves are evicted: a heap that tolerates stale entries."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any

from hicache_core.tree.eviction import EvictionPolicy
from hicache_core.tree.node import Node

SETTLE_STEPS = 4
"""Stale entries put right per insert, so that the work does not pile up for one eviction."""
_SLACK = 64


class VictimQueue:
    """The leaves of one tier, smallest policy value first.

    A leaf has at most one valid entry. An entry may lie about its leaf, but only by being too small; then it comes
    to the top too early, and is put right there. So a match costs the queue nothing, and an eviction O(log n),
    amortized. Policies whose values can fall are told of every use (`touched`) and push a new entry.
    """

    def __init__(self, policy: EvictionPolicy) -> None:
        self.policy = policy
        self.members: set[Node] = set()
        self.eager = bool(getattr(policy, "falls", True))
        self._priority = policy.priority
        self._heap: list[tuple[Any, int, Node]] = []
        self._entry: dict[Node, Any] = {}
        self._drawn: list[set[Node]] = []
        """Leaves that the iterations now running have taken out of the heap."""

    def __len__(self) -> int:
        return len(self.members)

    def add(self, node: Node) -> None:
        """The node is a leaf now."""
        self.members.add(node)
        if self.eager:
            self.touched(node)
        elif node not in self._entry:
            self._push(node, self._priority(node))

    def discard(self, node: Node) -> None:
        """The node is not a leaf, for now; its entry may stay and serve when it is one again."""
        self.members.discard(node)

    def forget(self, node: Node) -> None:
        """The node has left the tree."""
        self.members.discard(node)
        self._entry.pop(node, None)
        self._compact()

    def touched(self, node: Node) -> None:
        """The node was used. Needed only where `eager`."""
        if node in self.members and (now := self._priority(node)) != self._entry.get(node):
            self._push(node, now)

    def settle(self, steps: int = SETTLE_STEPS) -> None:
        """Put up to `steps` entries right that lie at the top."""
        for _ in range(steps):
            if not self._heap or self._settled():
                return

    def drain(self) -> Iterator[Node]:
        """Leaves in the order of the policy. Between two of them the tree may change in any way.

        A leaf that is still one when the caller asks for the next, or stops, was spared: it comes back into the
        queue once the iteration ends.
        """
        drawn: set[Node] = set()
        self._drawn.append(drawn)
        try:
            while (node := self._pop()) is not None:
                if node not in drawn:  # else it was spared, locked and unlocked again: once is enough
                    drawn.add(node)
                    yield node
        finally:
            self._drawn.remove(drawn)
            for node in drawn & self.members:
                self.add(node)

    def clear(self) -> None:
        """Forget everything."""
        self.members.clear()
        self._heap.clear()
        self._entry.clear()

    def faults(self) -> Iterator[str]:
        """What is wrong with the queue: every leaf must have one entry, and none may be too large."""
        in_heap = {(node, id(key)) for key, _, node in self._heap}
        for node in self.members:
            if node not in self._entry:
                if any(node in drawn for drawn in self._drawn):
                    continue
                yield f"leaf {node!r} has no entry in the queue"
            elif self._entry[node] > self._priority(node):
                yield f"leaf {node!r} is queued at {self._entry[node]!r}, above its priority {self._priority(node)!r}"
        for node, key in self._entry.items():
            if (node, id(key)) not in in_heap:
                yield f"the entry of {node!r} is not in the heap"
        if any(self._heap[(i - 1) // 2][:2] > self._heap[i][:2] for i in range(1, len(self._heap))):
            yield "the heap is out of order"

    def _push(self, node: Node, key: Any) -> None:
        self._entry[node] = key
        heapq.heappush(self._heap, (key, node.id, node))
        if self.eager:
            self._compact()

    def _settled(self) -> bool:
        """Put the top right. True: it was right."""
        key, _, node = self._heap[0]
        if self._entry.get(node) is not key:  # a later entry took its place, or the node has gone
            heapq.heappop(self._heap)
            return False
        if node not in self.members:
            heapq.heappop(self._heap)
            del self._entry[node]
            return False
        now = self._priority(node)
        if now == key:
            return True
        self._entry[node] = now
        heapq.heapreplace(self._heap, (now, node.id, node))
        return False

    def _pop(self) -> Node | None:
        """The first leaf, which leaves the heap."""
        while self._heap:
            if self._settled():
                node = heapq.heappop(self._heap)[2]
                del self._entry[node]
                return node
        return None

    def _compact(self) -> None:
        """Drop dead entries once they are more than half: they keep removed nodes alive."""
        if len(self._heap) > 2 * len(self._entry) + _SLACK:
            self._heap = [(key, node.id, node) for node, key in self._entry.items()]
            heapq.heapify(self._heap)
