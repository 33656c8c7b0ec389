"""The radix tree: which prefixes are in L1 and L2, and where.

Page-granular and path-compressed. Keys are bytes of little-endian uint32 tokens, so comparing an edge is one memcmp
and finding a child one dict probe on the bytes of a page. On every path from a root the nodes on the device come
first, then those in host memory only; a node in neither does not exist.

**One thread owns the tree** (the engine's): no method takes a lock, none may be called from another thread.

The parts, one idea a module: `matching`, `inserting`, `locking` (locks and copies in flight), `evicting` over the
state in `base`; `victims` orders leaves by a policy of `eviction`; `integrity` verifies all of it; `naive` is the
same thing again, slow and obvious, to test against.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hicache_core.errors import MisuseError
from hicache_core.keys import chain_seed, page_digests
from hicache_core.tree.evicting import Evicting
from hicache_core.tree.inserting import Inserting
from hicache_core.tree.integrity import check
from hicache_core.tree.locking import Locking
from hicache_core.tree.matching import Matching
from hicache_core.tree.node import Node


class RadixTree(Matching, Inserting, Locking, Evicting):
    """The tree.

    page_size: tokens per page, a power of two. eviction: a policy, or the name of an installed one. clock: orders
    uses; the default counts them.
    """

    def hashes(self, node: Node) -> list[str]:
        """The page hashes of `node`, 64 hex digits each, computed when first asked for.

        The chain starts at the root's seed, so nodes above are hashed as well where they were not. Do not change
        the list.
        """
        pending: list[Node] = []
        above: Node | None = node
        while above is not None and above.hashes is None and not above.is_root:
            pending.append(above)
            above = above.parent
        if above is None:
            raise MisuseError(f"{node!r} has been removed from the tree")
        prior = bytes.fromhex(above.hashes[-1]) if above.hashes else self._seed(above)
        for current in reversed(pending):
            digests = page_digests(self.tokens(current), self.page_size, prior=prior)
            current.hashes = [digest.hex() for digest in digests]
            prior = digests[-1]
        return node.hashes or []

    def _seed(self, root: Node) -> bytes | None:
        return chain_seed(*self.namespace_of(root))

    def path_hashes(self, node: Node) -> list[str]:
        """The page hashes of the whole sequence that ends with `node`."""
        self.hashes(node)
        return [digest for above in self.path(node) for digest in self.hashes(above)]

    def tokens(self, node: Node) -> npt.NDArray[np.uint32]:
        """The tokens of `node` alone, uint32[pages · page_size]."""
        return np.frombuffer(node.key, "<u4")

    def unbacked_path(self, node: Node) -> list[Node]:
        """Nodes on the path that are on the device, have no host copy and are not being backed up, top down.

        What a backup of `node` has to write, ancestors before descendants.
        """
        return [n for n in self.path(node) if n.host is None and n.write_pending is None]

    def loadable_path(self, node: Node) -> list[Node]:
        """Nodes on the path that are in host memory only, top down: what a load-back of `node` has to bring."""
        return [n for n in self.path(node) if n.device is None]

    def check_integrity(self) -> None:
        """Verify every invariant; raises IntegrityError that lists what does not hold. Linear in the tree."""
        check(self)
