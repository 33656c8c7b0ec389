"""Options of the backend `fault`, and what they leave of the inner store's capabilities."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from hicache_core.errors import OptionError
from hicache_core.plugin.select import BackendChoice, choose_backend
from hicache_core.types import Capabilities

Chance = Annotated[float, Meta(ge=0, le=1)]


class FaultOptions(msgspec.Struct, kw_only=True, frozen=True):
    """Options of `fault`; any other option goes to the inner backend. Probabilities are 0 … 1."""

    PASSTHROUGH: ClassVar[str] = "options"
    PER_PAGE: ClassVar[tuple[str, ...]] = ("truncate", "flip", "reorder")

    inner: Annotated[str, Meta(description="name of the backend that is wrapped")]
    seed: Annotated[int, Meta(description="the same seed and the same calls give the same faults")] = 0
    fail: Annotated[Chance, Meta(description="probability that a call raises, without reaching the store")] = 0.0
    delay: Annotated[Chance, Meta(description="probability that a call waits first")] = 0.0
    delay_seconds: Annotated[float, Meta(description="how long a delayed call waits", ge=0)] = 0.05
    stall: Annotated[Chance, Meta(description="probability that a call hangs, until close at the latest")] = 0.0
    stall_seconds: Annotated[float, Meta(description="how long a stalled call hangs", ge=0)] = 3600.0
    truncate: Annotated[Chance, Meta(description="probability that a page loses its end")] = 0.0
    flip: Annotated[Chance, Meta(description="probability that one bit of a page is turned over")] = 0.0
    reorder: Annotated[Chance, Meta(description="probability that a page is exchanged with its neighbour")] = 0.0
    stale_exists: Annotated[Chance, Meta(description="probability that an absent page is said to be there")] = 0.0
    at: Annotated[
        Literal["get", "set"],
        Meta(description="whether truncate, flip and reorder strike what is read, or are stored for good"),
    ] = "get"
    options: Annotated[dict[str, Any], Meta(description="the inner backend's own options")] = {}

    def __post_init__(self) -> None:
        for name in ("fail", "delay", "stall", "truncate", "flip", "reorder", "stale_exists"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is a probability, 0 … 1; got {getattr(self, name)}")
        if self.inner == "fault":
            raise ValueError("fault cannot wrap itself")

    @property
    def damages(self) -> bool:
        """Whether any page can come out other than it went in."""
        return any(getattr(self, name) for name in self.PER_PAGE)


def inner_choice(options: FaultOptions) -> BackendChoice:
    """The wrapped backend with its options; text is taken for every type, as from a command line."""
    if "://" in options.inner:
        raise OptionError("option 'inner' of backend 'fault' is a name, not a URL; the inner options stand beside it")
    return choose_backend(options.inner, options.options, strict=False)


def capabilities_under(options: FaultOptions) -> Capabilities:
    """The inner store's capabilities, less those that the faults break."""
    return without_broken(inner_choice(options).capabilities, options)


def without_broken(inner: Capabilities, options: FaultOptions) -> Capabilities:
    """What remains: damaged pages are not durable; stored damage goes as buffers, never straight from a pool."""
    broken: dict[str, Any] = {}
    if options.damages:
        broken["durable"] = False
        broken["clean_miss"] = False
        if options.at == "set":
            broken |= {"zero_copy_v1": False, "native_v2": False}
    if options.stale_exists:
        broken["native_v2"] = False
    if options.delay or options.stall:
        broken["nonblocking"] = False
    return msgspec.structs.replace(inner, **broken)
