"""Options of the backend `sglang`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from hicache_core.types import Capabilities

V1_ALIGNMENT = 2
"""On the v1 path a page is two halves, K and V, of equal size."""


class SglangOptions(msgspec.Struct, kw_only=True, frozen=True):
    """Which class, and what SGLang would tell it."""

    sglang_class: Annotated[str, Meta(description="MODULE:CLASS, a subclass of SGLang's HiCacheStorage")]
    extra_config: Annotated[
        dict[str, Any], Meta(description="what --hicache-storage-backend-extra-config holds, as JSON")
    ] = {}
    environment: Annotated[
        dict[str, str], Meta(description="environment variables, set while the class is constructed")
    ] = {}
    path: Annotated[
        Literal["auto", "generic", "v1"],
        Meta(description="batch_get/batch_set, or batch_get_v1/batch_set_v1 where the class has them (auto)"),
    ] = "auto"
    layout: Annotated[
        Literal["page_first", "page_first_direct", "layer_first"], Meta(description="layout of the host pool of v1")
    ] = "page_first"
    model_name: Annotated[str, Meta(description="the model's name; empty: the namespace of the key")] = ""
    tp_rank: int = 0
    tp_size: int = 1
    pp_rank: int = 0
    pp_size: int = 1
    is_mla_model: bool = False
    clear: Annotated[
        bool, Meta(description="clear(namespace) calls the class's clear(), which may remove more than that")
    ] = False
    durable: Annotated[bool, Meta(description="pages are said to survive the process that wrote them")] = False
    shared: Annotated[bool, Meta(description="other processes are said to find them")] = False

    def __post_init__(self) -> None:
        module, colon, name = self.sglang_class.partition(":")
        if not (module and colon and name) or ":" in name:
            raise ValueError(f"sglang_class {self.sglang_class!r} is not of the form MODULE:CLASS")

    @property
    def module(self) -> str:
        """The part before the colon."""
        return self.sglang_class.partition(":")[0]

    @property
    def class_name(self) -> str:
        """The part after it."""
        return self.sglang_class.partition(":")[2]


def capabilities_under(options: SglangOptions) -> Capabilities:
    """What SGLang's interface can promise: neither replace nor delete nor scan nor a word about what was there.

    A page of an odd number of bytes has no two equal halves, which v1 needs.
    """
    alignment = 1 if options.path == "generic" else V1_ALIGNMENT
    return Capabilities(durable=options.durable, shared=options.shared, alignment=alignment)
