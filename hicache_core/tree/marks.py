"""Which nodes a copy between the tiers is reading or filling."""

from __future__ import annotations

from collections.abc import Sequence

from hicache_core.errors import MisuseError
from hicache_core.tree.node import Node


class Marks:
    """Copies in flight in one direction: id → the nodes concerned, top down, halves of split nodes included."""

    def __init__(self, word: str) -> None:
        self.word = word
        self._nodes: dict[int, list[Node]] = {}

    def __len__(self) -> int:
        return len(self._nodes)

    def ids(self) -> list[int]:
        """Every id in flight."""
        return list(self._nodes)

    def begin(self, op_id: int, nodes: Sequence[Node]) -> None:
        """Note a copy. Raises MisuseError for an id in use."""
        if op_id in self._nodes:
            raise MisuseError(f"a {self.word} with id {op_id} is in flight already")
        self._nodes[op_id] = list(nodes)

    def nodes(self, op_id: int) -> list[Node]:
        """The nodes of a copy, top down. Raises MisuseError for an unknown id."""
        try:
            return list(self._nodes[op_id])
        except KeyError:
            raise MisuseError(f"no {self.word} with id {op_id} is in flight") from None

    def end(self, op_id: int) -> list[Node]:
        """Forget a copy; returns its nodes, top down."""
        nodes = self.nodes(op_id)
        del self._nodes[op_id]
        return nodes

    def split(self, op_id: int | None, lower: Node, upper: Node) -> None:
        """`lower` got an upper half."""
        if op_id is not None:
            nodes = self._nodes[op_id]
            nodes.insert(nodes.index(lower), upper)

    def clear(self) -> None:
        """Forget everything."""
        self._nodes.clear()
