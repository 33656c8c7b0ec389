"""Page transforms: compression, encryption. They stand between the page in L2 and the sealed page in the store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from hicache_core.errors import ConfigError
from hicache_core.namespace import TransformIdentity
from hicache_core.types import Capabilities, IoContext, Outcome, Page


@runtime_checkable
class Transform(Protocol):
    """One transform. Called from several threads; sizes and lengths are bytes of a page without its seal."""

    identity: TransformIdentity
    """Name, version, parameters and key id: part of the namespace, so pages made otherwise are a miss."""
    in_place_decode: bool
    """decode may be given the same memory as source and destination."""
    changes_length: bool
    """The encoded page may have another length than the page."""

    def max_size(self, nbytes: int) -> int:
        """Bytes that the encoded form of a page of `nbytes` takes at most."""

    def encode(self, ctx: IoContext, keys: Sequence[str], pages: Sequence[Page]) -> list[Page]:
        """New pages of memory of its own. Never touches its input, which is the live page."""

    def decode(
        self,
        ctx: IoContext,
        keys: Sequence[str],
        src: Sequence[Page],
        lengths: list[int],
        dst: Sequence[Page],
        outcomes: list[Outcome],
    ) -> list[Outcome]:
        """Fill `dst[i]` from the first `lengths[i]` bytes of `src[i]` wherever outcomes[i] is HIT.

        Sets `lengths[i]` to the bytes that it produced (a wrong number is CORRUPT), and returns the outcomes:
        HIT, or CORRUPT where the page cannot be decoded.
        """


class TransformChain:
    """The ordered transforms of a session: the first encodes first. Raises ConfigError where the store cannot."""

    def __init__(self, transforms: Sequence[Transform], capabilities: Capabilities) -> None:
        self.transforms = tuple(transforms)
        for transform in self.transforms:
            if transform.changes_length and not capabilities.variable_length:
                raise ConfigError(
                    f"transform {transform.identity.name!r} changes the length of pages, and this store takes only "
                    f"pages of one length (capability variable_length)"
                )
        self.in_place = all(t.in_place_decode and not t.changes_length for t in self.transforms)
        """Pages can be read straight into their place and decoded there."""
        self.variable = any(t.changes_length for t in self.transforms)

    def __bool__(self) -> bool:
        return bool(self.transforms)

    @property
    def identity(self) -> tuple[TransformIdentity, ...]:
        """What the namespace has to know."""
        return tuple(transform.identity for transform in self.transforms)

    def sizes(self, nbytes: int) -> list[int]:
        """Largest size after 0, 1, … transforms; the last is what has to be read."""
        sizes = [nbytes]
        for transform in self.transforms:
            sizes.append(transform.max_size(sizes[-1]))
        return sizes

    def encode(self, ctx: IoContext, keys: Sequence[str], pages: Sequence[Page]) -> Sequence[Page]:
        """Through all transforms. Raises what they raise, and ValueError for a wrong number of pages."""
        for transform in self.transforms:
            pages = transform.encode(ctx, keys, pages)
            if len(pages) != len(keys):
                raise ValueError(f"transform {transform.identity.name!r} made {len(pages)} pages of {len(keys)}")
        return pages
