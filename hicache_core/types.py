"""The vocabulary of the storage contract: what goes over the hooks and what comes back."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import msgspec
import numpy as np
import numpy.typing as npt

PLUGIN_API = 1
"""Version of the contract. It grows by optional arguments and hooks; a breaking change raises it."""

BATCH_PAGES = 128
"""Pages in one call to a backend, at most."""

MAX_KEY_LENGTH = 200
KEY_PATTERN = re.compile(r"(?!.*(?:^|/)(?:\.{0,2})(?:/|$))[0-9a-z._/-]{1,200}")
"""A legal physical key: opaque ASCII, no segment empty, `.` or `..`. Use with `fullmatch`."""

Slots: TypeAlias = npt.NDArray[np.int64]
"""Page slots of a pool: int64[n]."""

Buffer: TypeAlias = memoryview
"""One contiguous byte buffer (format B, one dimension)."""

Page: TypeAlias = Sequence[Buffer]
"""A page as a backend sees it: its buffers in order, the seal first when one is in use."""


class Outcome(Enum):
    """What became of one page. True where the caller got what was asked for."""

    HIT = "hit"
    STORED = "stored"
    EXISTS = "exists"
    MISS = "miss"
    CORRUPT = "corrupt"
    FOREIGN = "foreign"
    REJECTED = "rejected"
    UNAVAILABLE = "unavailable"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"

    success: bool

    def __init__(self, word: str) -> None:
        self.success = word in ("hit", "stored", "exists")

    def __bool__(self) -> bool:
        return self.success


GET_OUTCOMES = frozenset(
    {
        Outcome.HIT,
        Outcome.MISS,
        Outcome.CORRUPT,
        Outcome.REJECTED,
        Outcome.UNAVAILABLE,
        Outcome.TIMEOUT,
        Outcome.CANCELLED,
    }
)
"""What a backend may answer to get. FOREIGN is the guard's alone."""
SET_OUTCOMES = (GET_OUTCOMES - {Outcome.HIT, Outcome.MISS}) | {Outcome.STORED, Outcome.EXISTS}
DELETE_OUTCOMES = GET_OUTCOMES


class PoolName(str, Enum):
    """The pools of a model's cache. `str()` gives the value; names are SGLang's (hicache_storage.py)."""

    KV = "kv"
    MAMBA = "mamba"
    SWA = "swa"
    AUXILIARY_SWA = "auxiliary_swa"
    INDEXER = "indexer"
    DEEPSEEK_V4_C1 = "deepseek_v4_c1"
    DEEPSEEK_V4_C1_INDEXER = "deepseek_v4_c1_indexer"
    DEEPSEEK_V4_C1_INDEXER_SCALE = "deepseek_v4_c1_indexer_scale"
    DEEPSEEK_V4_C2 = "deepseek_v4_c2"
    DEEPSEEK_V4_C2_INDEXER = "deepseek_v4_c2_indexer"
    DEEPSEEK_V4_C2_INDEXER_SCALE = "deepseek_v4_c2_indexer_scale"
    DEEPSEEK_V4_C4 = "deepseek_v4_c4"
    DEEPSEEK_V4_C4_INDEXER = "deepseek_v4_c4_indexer"
    DEEPSEEK_V4_C4_INDEXER_SCALE = "deepseek_v4_c4_indexer_scale"
    DEEPSEEK_V4_C128 = "deepseek_v4_c128"
    DEEPSEEK_V4_C4_ROPE = "deepseek_v4_c4_rope"
    DEEPSEEK_V4_C128_ROPE = "deepseek_v4_c128_rope"
    DEEPSEEK_V4_C4_STATE = "deepseek_v4_c4_state"
    DEEPSEEK_V4_C4_INDEXER_STATE = "deepseek_v4_c4_indexer_state"
    DEEPSEEK_V4_C128_STATE = "deepseek_v4_c128_state"
    DRAFT = "draft"
    DRAFT_INDEXER = "draft_indexer"
    DRAFT_SWA = "draft_swa"

    def __str__(self) -> str:
        return self.value


class PoolHitPolicy(str, Enum):
    """Which pages of a pool a prefix needs. BLOCK_GROUPS is accepted and never hits (not supported)."""

    ALL_PAGES = "all_pages"
    TRAILING_PAGES = "trailing_pages"
    BLOCK_GROUPS = "block_groups"

    def __str__(self) -> str:
        return self.value


@dataclass(slots=True)
class PoolTransfer:
    """The part of a v2 call that concerns one pool.

    keys: one physical key per page of the prefix. slots: int64[len(keys)] of the registered pool, or None
    for exists and for pools without bytes. trailing: window in pages for TRAILING_PAGES: prefix p needs pages
    max(0, p - trailing) … p - 1.
    """

    name: PoolName
    keys: Sequence[str]
    slots: Slots | None = None
    policy: PoolHitPolicy = PoolHitPolicy.ALL_PAGES
    trailing: int = 1


@dataclass(slots=True)
class PoolTransferResult:
    """Every prefix length (in pages, ascending, without 0) that can be restored; the largest is the hit.

    `restorable = None` from a native batch_exists_v2 means that 1 … kv_hit_pages are all legal.
    """

    kv_hit_pages: int
    restorable: Sequence[int] | None = None


@runtime_checkable
class HostPoolView(Protocol):
    """What a store may know of a host pool whose memory is lent to it."""

    @property
    def name(self) -> PoolName:
        """The pool's name in v1 and v2 calls."""

    @property
    def layout(self) -> str:
        """Byte order of a page."""

    @property
    def page_size(self) -> int:
        """Tokens per page."""

    @property
    def owner(self) -> object:
        """Whoever keeps the memory alive; held until the last call has returned."""

    def regions(self, slots: Slots) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Addresses and sizes in bytes of the pages' regions: (ptrs int64[n, r], sizes int64[n, r])."""

    def pages(self, slots: Slots) -> list[list[memoryview]]:
        """The same regions as writable byte buffers, n lists of r."""


def _no_page(index: int) -> None:
    """What `seal_page` and `verify_page` are where the session does the whole batch itself."""


@dataclass(slots=True)
class IoContext:
    """What accompanies a batch on its way to a backend."""

    deadline: float | None = None
    """time.monotonic() after which the core no longer waits; clients set their own timeouts from it."""
    priority: int = 0
    """As the caller of the operation gave it. The core hands it on and orders nothing by it."""
    tenant: str = ""
    """Of the session; its namespace holds it already."""
    prefix_keys: Sequence[str] | None = None
    """Physical keys from the start of the sequence up to the first key of the call, where asked for."""
    replace: bool = False
    """set only: replace what is stored, atomically (capability `replace`)."""
    lengths: list[int] | None = None
    """get only, out: the stored length of each page, seal included (capability `variable_length`)."""
    seals: Sequence[memoryview] | Mapping[PoolName, Sequence[memoryview]] | None = None
    """v1: one seal buffer per key. v2: the same by pool."""
    pages: Sequence[Page] | Mapping[PoolName, Sequence[Page]] | None = None
    """The pages of a v1 or v2 call as buffers, seal included: what the defaults use."""
    seal_page: Callable[[int], None] = _no_page
    """set: stamp the seal of the call's page of this index. A hook marked `pagewise` calls it just before it reads
    that page, seal included; from any thread, more than once if it likes, never after it has returned. Raises where
    nobody waits for the call any more: the memory may hold other pages by then, and nothing is to be stored."""
    verify_page: Callable[[int], None] = _no_page
    """get: let the session judge the call's page of this index by its seal. A hook marked `pagewise` calls it once
    all bytes of that page are in place, and again where it has filled the page anew; never after it has returned."""


class Capabilities(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a store can do beyond the required hooks. Declared by the author, verified by the suite."""

    durable: bool = False
    """Stored pages survive kill -9 and a restart of the process that wrote them."""
    shared: bool = False
    """Other processes that open the same store find them."""
    zero_copy_v1: bool = False
    """batch_get_v1/batch_set_v1 are native and move bytes straight from and into the registered pool."""
    native_v2: bool = False
    """The v2 hooks are the store's own: all pools of a hybrid model in one call, by lent memory."""
    replace: bool = False
    """set with ctx.replace swaps the bytes atomically."""
    delete: Literal["immediate", "eventual", "none"] = "none"
    """Whether a page that was deleted is gone when the call returns, some time later, or cannot be deleted."""
    scan: bool = False
    """Keys can be listed, with sizes and times."""
    reports_exists: bool = False
    """set answers EXISTS, not STORED, for a key that was there."""
    clean_miss: bool = False
    """A MISS leaves the destination unchanged."""
    variable_length: bool = False
    """get accepts buffers larger than what is stored and tells the true length in ctx.lengths."""
    max_page_bytes: int | None = None
    """Largest page, seal included."""
    alignment: int = 1
    """Bytes that addresses and sizes of regions must be a multiple of."""
    call_bytes: int | None = None
    """Most bytes one call should carry; one page at least. A few MiB suit a store that serves one call after the
    other: while it serves one, the pages of the last are verified and those of the next are sealed."""
    parallelism: int = 1
    """Calls that the store serves at once with profit; above 1 the store is latency-bound and small batches
    are split over workers too."""
    spread: bool = True
    """Whether large pages of one operation are spread over calls that run at once, so that two cores copy, seal and
    verify them. Not with profit where a client moves the bytes of one call after the other and keeps a core busy."""
    nonblocking: bool = False
    """No call waits for anything outside this process's memory. A caller that waits anyway then runs the call on its
    own thread, where no deadline can interrupt it."""
    layouts: tuple[str, ...] | None = None
    """Host layouts it can take; None: all."""
    registration: Literal["none", "region"] = "none"
    """Whether it wants memory registered before I/O."""


class SdkRequirement(msgspec.Struct, frozen=True):
    """A module that a backend imports when it is opened, and how to get it."""

    module: str
    install: str


@dataclass(frozen=True, slots=True)
class OpenContext:
    """What a factory is told when a session opens."""

    namespace: str
    """32 lower-case hex digits: first segment of every key of this session."""
    tenant: str = ""
    seal_bytes: int = 64
    """Bytes of the seal that precedes every page (its stride), 0 where the session does not seal."""
    rank: int = 0
    world_size: int = 1
    inspecting: bool = False
    """True for an operator's tool: what is not there is an error, not made; reading is no use of a page."""


OptionsType: TypeAlias = type[msgspec.Struct]
Factory: TypeAlias = Callable[[Any, OpenContext], object]


@dataclass(frozen=True, slots=True)
class BackendSpec:
    """A backend, described without importing its SDK."""

    name: str
    description: str
    options: OptionsType
    """Struct of options: defaults, and help in `Annotated[..., msgspec.Meta(description=...)]`."""
    factory: str | Factory
    """`module:callable`, imported when a session opens: (options, OpenContext) -> object with @hookimpl methods."""
    capabilities: Capabilities | Callable[[Any], Capabilities] = field(default_factory=Capabilities)
    """Fixed, or a function of the options. An opened backend may narrow them in an attribute `capabilities`."""
    plugin_api: int = PLUGIN_API
    requires: tuple[SdkRequirement, ...] = ()
    probe: str | None = None
    """`module:callable`, (options or None) -> list[str]: what `hicache doctor` should say; empty: all is well."""
    options_from_url: str | None = None
    """`module:callable`, (url) -> dict of options: for `NAME://…`; without it only the query string is read."""
    fake: bool = False
    """True where the backend runs on a fake of its store (named so in every report)."""

    def capabilities_for(self, options: Any) -> Capabilities:
        """The capabilities under these options."""
        return self.capabilities(options) if callable(self.capabilities) else self.capabilities
